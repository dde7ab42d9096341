"""Jacobi Forcing: an autoregressive model learns to predict right tokens after wrong ones."""
