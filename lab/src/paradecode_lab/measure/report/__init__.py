"""Benchmark results as one page, pictures and tables: `paradecode report`."""
