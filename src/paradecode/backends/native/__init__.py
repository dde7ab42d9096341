"""The native CPU backend: a C++ core (``csrc/``) and its thin binding."""
