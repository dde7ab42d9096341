"""Scorers of branches, which are parts of the kind ``scorer`` in the registry."""
