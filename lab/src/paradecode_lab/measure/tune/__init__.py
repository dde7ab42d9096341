"""Finds the method, the settings and the budget that make a workload fastest on this machine."""
