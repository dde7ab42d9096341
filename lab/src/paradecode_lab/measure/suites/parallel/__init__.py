"""Quality against speed of canvas decoding, on tasks with checkable answers."""
