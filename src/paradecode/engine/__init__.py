"""Live sequences, paged K/V caches, the scheduler and the step loop."""
