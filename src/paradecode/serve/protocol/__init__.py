"""Requests of OpenAI's and Anthropic's APIs, with bounds, and a report of fields without effect."""
