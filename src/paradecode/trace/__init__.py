"""Traces of generations: as a page that replays one, in the terminal, and as JSON."""

from paradecode.trace.page import page
from paradecode.trace.record import Trace, trace_of, trace_record
from paradecode.trace.terminal import bracketed, coloured, legend, terminal_view

__all__ = [
    "Trace",
    "bracketed",
    "coloured",
    "legend",
    "page",
    "terminal_view",
    "trace_of",
    "trace_record",
]
