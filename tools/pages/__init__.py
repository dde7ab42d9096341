"""Generates pages of the documentation, and parts of them."""
