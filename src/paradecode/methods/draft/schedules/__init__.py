"""Schedules: loops in which drafting and verifying happen at the same time, one a file."""
