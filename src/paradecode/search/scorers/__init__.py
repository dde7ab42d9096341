"""Scorers of branches: the registry's kind ``scorer``, one in each file."""
