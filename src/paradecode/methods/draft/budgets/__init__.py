"""Budgets, one a file: how many draft tokens are worth drafting and verifying now."""
