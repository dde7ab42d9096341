"""Draft and verify: drafter x budget x verifier, put together by the loop."""
