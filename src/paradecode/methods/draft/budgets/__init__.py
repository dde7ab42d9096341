"""Budgets decide how many draft tokens are worth drafting and verifying now."""
