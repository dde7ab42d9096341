"""Commit policies, by family. Each decides which proposed tokens become permanent."""
