"""Commit policies, one a file: which proposals become permanent."""
