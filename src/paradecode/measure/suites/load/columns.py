"""The suite's tables: throughput, and latency with its intervals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paradecode.measure.suites.load.summary import LoadSummary, Percentiles
from paradecode.measure.tables import Column, ends, number

THROUGHPUT: tuple[Column[LoadSummary], ...] = (
    Column("load", lambda s: str(s.load)),
    Column("endpoint", lambda s: s.endpoint),
    Column("failed", lambda s: f"{sum(s.errors.values())}/{s.requests}"),
    Column("tokens/s", lambda s: ends(s.throughput)),
    Column("x", lambda s: ends(s.speedup)),
    Column("goodput/s", lambda s: _goodput(s)),
)


@dataclass(frozen=True)
class Latency:
    """One line of a summary's latencies; ``load`` and ``endpoint`` stand on its first line."""

    load: str
    endpoint: str
    name: str
    found: Percentiles
    scale: float


LATENCY: tuple[Column[Latency], ...] = (
    Column("load", lambda line: line.load),
    Column("endpoint", lambda line: line.endpoint),
    Column("", lambda line: line.name),
    Column("p50", lambda line: ends(line.found["p50"], line.scale)),
    Column("p90", lambda line: ends(line.found["p90"], line.scale)),
    Column("p99", lambda line: ends(line.found["p99"], line.scale)),
)


def latencies(summaries: Sequence[LoadSummary]) -> Iterator[Latency]:
    """The lines of the table of latencies."""
    for s in summaries:
        yield Latency(str(s.load), s.endpoint, "TTFT, ms", s.first, 1000)
        yield Latency("", "", "TPOT, ms", s.per_token, 1000)
        yield Latency("", "", "whole, s", s.whole, 1)


def _goodput(summary: LoadSummary) -> str:
    """Requests a second, and their share of all."""
    if summary.good is None or summary.goodput is None:
        return ""
    return f"{number(summary.goodput)} ({100 * summary.good.value:.0f} %)"
