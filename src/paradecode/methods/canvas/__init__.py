"""Methods for masked diffusion models: a canvas of masks is filled several tokens a forward."""
