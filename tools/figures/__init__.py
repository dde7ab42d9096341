"""Measurements for single figures of the documents; each is a command of its own."""
