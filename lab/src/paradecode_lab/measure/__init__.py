"""Measuring: prompts, interleaved runs, statistics that survive a noisy machine, tables, plots."""
