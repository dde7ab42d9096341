"""Shared by all measurements: prompts, interleaved runs, robust statistics, tables and charts."""
