"""Cache rules, by family: each says which keys and values are not computed again."""
