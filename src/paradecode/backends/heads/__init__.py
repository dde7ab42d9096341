"""Draft heads in Python, on any backend that runs networks. The native core is tested against
this."""
