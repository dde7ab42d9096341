"""Caches, one a file: which keys and values are not computed anew."""
