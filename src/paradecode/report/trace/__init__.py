"""Traces: as a page that replays a generation, in the terminal, and as JSON."""

from paradecode.report.trace.page import page
from paradecode.report.trace.record import trace_of, trace_record
from paradecode.report.trace.schema import Trace
from paradecode.report.trace.terminal import bracketed, coloured, legend, terminal_view

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
