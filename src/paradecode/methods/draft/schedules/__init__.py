"""Schedules, one in each file: loops that draft and verify at the same time."""
