"""Train the small parts that some methods need; the models themselves stay unchanged."""
