"""Run the server on a Ray cluster: replicas hold workers, and a front sends requests to them."""
