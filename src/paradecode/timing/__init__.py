"""Timing that can be trusted: one-off costs are paid first, and doubtful speed-ups are marked."""
