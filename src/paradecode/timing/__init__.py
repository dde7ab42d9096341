"""Timing that can be believed: one-off costs are paid first, doubtful speed-ups are marked."""
