"""Trained files that Paradecode finds by this package's name; no code imports the package."""
