"""The suite ``load``: latency, throughput and goodput of OpenAI-compatible servers."""
