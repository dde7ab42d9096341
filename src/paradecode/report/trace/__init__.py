"""Traces for people and programs: a page that replays a generation, a terminal view, JSON."""

from paradecode.report.trace.page import page
from paradecode.report.trace.record import trace_of, trace_record
from paradecode.report.trace.schema import Trace
from paradecode.report.trace.terminal import terminal_view

__all__ = ["Trace", "page", "terminal_view", "trace_of", "trace_record"]
