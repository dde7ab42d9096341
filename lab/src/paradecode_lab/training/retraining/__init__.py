"""Training of models that decode in another way, from a model that decodes plainly."""
