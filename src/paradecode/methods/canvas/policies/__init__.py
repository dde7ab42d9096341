"""Commit policies, by family: rules that say which proposals become permanent."""
