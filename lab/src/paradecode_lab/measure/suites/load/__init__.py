"""Load on OpenAI-compatible servers: latency, throughput, goodput; several servers in one run."""
