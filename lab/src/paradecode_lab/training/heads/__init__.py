"""Draft heads: texts of the target, its states over them, and networks that learn to guess
further."""
