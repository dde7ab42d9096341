"""Trained parts of canvas methods, made by running a diffusion model over a workload."""
