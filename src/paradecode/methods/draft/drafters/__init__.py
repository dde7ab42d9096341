"""Drafters, by family. Importing a file registers its methods."""
