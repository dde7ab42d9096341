"""Train the learned parts of canvas methods by running a diffusion model over a workload."""
