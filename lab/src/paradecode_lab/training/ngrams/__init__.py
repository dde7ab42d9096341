"""Tables of n-grams for lookup: where their texts come from."""
