"""The server on a Ray cluster: replicas that hold workers, and a front before them."""
