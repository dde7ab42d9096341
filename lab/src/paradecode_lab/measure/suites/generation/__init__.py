"""Decoders side by side on prompts: speed, what it cost, and whether the output is still right."""
