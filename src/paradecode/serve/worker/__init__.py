"""The worker process, with one model and one engine loop. Requests and events are lines."""
