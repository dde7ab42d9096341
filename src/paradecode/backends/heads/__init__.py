"""Draft heads on any backend that runs networks, in Python: the oracle of the native core."""
