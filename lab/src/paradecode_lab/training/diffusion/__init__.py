"""Train small masked diffusion models, and autoregressive twins, on tasks with known answers."""
