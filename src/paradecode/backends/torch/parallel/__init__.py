"""Tensor parallelism: one model divided among several processes (ranks)."""
