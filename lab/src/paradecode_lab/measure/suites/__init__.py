"""Suites: the cases to run, how they are judged, and how the result is shown."""
