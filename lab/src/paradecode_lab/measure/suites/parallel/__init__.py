"""The suite ``parallel``: quality and speed of canvas decoding on tasks with checkable answers."""
