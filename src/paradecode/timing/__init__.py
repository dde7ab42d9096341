"""Reliable timing: one-off work is done before a clock runs, and doubtful speed-ups are marked."""
