"""Scorers of branches: the registry's kind ``scorer``."""
