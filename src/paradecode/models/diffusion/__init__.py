"""Published families of masked diffusion models, one family in each file."""
