"""Types that all rooms share: requests, token trees, logits, sampling, noise and the trace."""
