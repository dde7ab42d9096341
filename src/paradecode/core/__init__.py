"""Types that all rooms share: requests, token trees, logits, sampling, random numbers, traces."""
