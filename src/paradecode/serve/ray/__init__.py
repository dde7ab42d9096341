"""The server on a Ray cluster: replicas that hold workers, and a front that sends requests to
them."""
