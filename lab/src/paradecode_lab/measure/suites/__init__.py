"""Suites: what to run, how it is judged, and how the result is shown."""
