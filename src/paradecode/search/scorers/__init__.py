"""Scorers of branches, which are the kind ``scorer`` of the registry."""
