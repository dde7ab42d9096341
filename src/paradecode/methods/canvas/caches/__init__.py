"""Caches, by family: rules that say which keys and values are not computed again."""
