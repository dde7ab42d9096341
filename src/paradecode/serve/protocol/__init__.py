"""OpenAI's and Anthropic's requests. They are bounded, and what has no effect is named."""
