"""The command `paradecode report`: benchmark results as a page, pictures and tables."""
