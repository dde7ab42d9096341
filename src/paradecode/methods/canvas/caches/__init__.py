"""Cache rules, by family. Each chooses the positions whose keys and values are computed again."""
