"""Draft-and-verify methods: the loop combines a drafter, a budget and a verifier."""
