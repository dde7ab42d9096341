"""Peer engines, each in an environment of its own, measured beside Paradecode."""
