"""The texts from which tables of n-grams for lookup are counted."""
