"""Generators of documentation."""
