"""OpenAI's requests: strict and bounded; unknown fields are refused, not ignored."""
