"""Retrain a model that decodes plainly, so that it can decode by another method."""
