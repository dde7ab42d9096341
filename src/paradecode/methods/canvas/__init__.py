"""Methods for masked diffusion models: each forward pass fills several masks of a canvas."""
