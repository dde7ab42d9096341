"""The suite ``generation``: decoders side by side on prompts, with speed, cost and quality."""
