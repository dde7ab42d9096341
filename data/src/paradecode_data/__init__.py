"""Trained files that Paradecode finds by name: nothing imports this package."""
