"""The words everyone speaks: requests, trees, logits, sampling, noise, trace."""
