"""Measures other engines (peers), each in an environment of its own, beside Paradecode."""
