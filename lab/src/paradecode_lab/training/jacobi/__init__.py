"""Jacobi Forcing: an autoregressive model learns to be right behind wrong tokens."""
