"""The tables of a run: throughput, and latency with its intervals."""

from __future__ import annotations

from collections.abc import Sequence

from paradecode.measure.suites.load.summary import LoadSummary
from paradecode.measure.tables import ends, number

THROUGHPUT = ("load", "endpoint", "failed", "tokens/s", "x", "goodput/s")
LATENCY = ("load", "endpoint", "", "p50", "p90", "p99")


def throughput_rows(summaries: Sequence[LoadSummary]) -> list[tuple[str, ...]]:
    """Cells under THROUGHPUT; goodput is requests a second, and their share of all."""
    return [
        (
            str(s.load),
            s.endpoint,
            f"{sum(s.errors.values())}/{s.requests}",
            ends(s.throughput),
            ends(s.speedup),
            f"{number(s.goodput)} ({100 * s.good.value:.0f} %)"
            if s.good is not None and s.goodput is not None
            else "",
        )
        for s in summaries
    ]


def latency_rows(summaries: Sequence[LoadSummary]) -> list[tuple[str, ...]]:
    """Cells under LATENCY."""
    rows = []
    for s in summaries:
        for name, found, scale in (
            ("TTFT, ms", s.first, 1000), ("TPOT, ms", s.per_token, 1000), ("whole, s", s.whole, 1),
        ):  # fmt: skip
            head = (str(s.load), s.endpoint) if found is s.first else ("", "")
            rows.append((*head, name, *(ends(figure, scale) for figure in found.values())))
    return rows
