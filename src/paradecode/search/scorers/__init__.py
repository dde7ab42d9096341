"""What scores branches: the registry's kind ``scorer``, one a file."""
