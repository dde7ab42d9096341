"""The server: an HTTP front, and worker processes that hold the engines."""
