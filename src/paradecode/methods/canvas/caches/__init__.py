"""Caches, one in each file: rules that say which keys and values are not computed again."""
