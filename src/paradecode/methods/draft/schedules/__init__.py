"""Schedules: loops that run the draft model and the target at the same time."""
