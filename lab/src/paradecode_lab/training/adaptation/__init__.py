"""Adapt an autoregressive model into a block diffusion model."""
