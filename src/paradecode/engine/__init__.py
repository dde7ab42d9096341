"""Sequences, paged caches, the scheduler and the step loop."""
