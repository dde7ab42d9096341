"""Published families of masked diffusion models, one in each file."""
