"""Commit policies, one in each file: rules that say which proposals become permanent."""
