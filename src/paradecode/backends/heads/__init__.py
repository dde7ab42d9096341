"""Draft heads in Python, for any backend that runs networks; tests compare the core with them."""
