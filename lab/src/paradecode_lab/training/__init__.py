"""Training of the small parts that some methods need; the models themselves stay as they are."""
