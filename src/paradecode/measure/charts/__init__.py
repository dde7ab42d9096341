"""Pictures: functions from plain data to matplotlib figures and files."""
