"""Says what a model would do on several machines, by an exact simulation of its parts there."""
