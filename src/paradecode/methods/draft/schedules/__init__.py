"""Schedules: loops that draft and verify at the same time."""
