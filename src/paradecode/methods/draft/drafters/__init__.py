"""Drafters, one a file. Importing a file registers its method."""
