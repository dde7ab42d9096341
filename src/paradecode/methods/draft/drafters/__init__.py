"""Drafters, one file for each family; importing a file registers its methods."""
