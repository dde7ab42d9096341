"""Decoders side by side on prompts: their speed, their cost, and whether the output is still
right."""
