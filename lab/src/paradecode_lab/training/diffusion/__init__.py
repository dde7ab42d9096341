"""Small masked diffusion models for tasks with checkable answers, and autoregressive twins."""
