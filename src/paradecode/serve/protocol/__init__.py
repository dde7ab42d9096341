"""OpenAI's requests. They are strict and bounded: unknown fields are refused, not ignored."""
