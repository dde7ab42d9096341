"""Published families of masked diffusion models, one a file."""
