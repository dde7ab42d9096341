"""Block rules, one a file: in which positions masks may be decided."""
