"""The worker process: one model, one engine loop; requests come in and events go out as lines."""
