"""Reliable timing: one-off costs are paid first, and doubtful speed-ups are marked."""
