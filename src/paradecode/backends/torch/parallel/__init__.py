"""Tensor parallelism: one model divided among processes, one a rank."""
