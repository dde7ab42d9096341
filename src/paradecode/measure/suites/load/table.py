"""The tables of a run: throughput, and latency with its intervals."""

from __future__ import annotations

from collections.abc import Sequence

from paradecode.measure.suites.load.figures import Figure
from paradecode.measure.suites.load.summary import Summary

THROUGHPUT = ("load", "endpoint", "failed", "tokens/s", "x", "goodput/s")
LATENCY = ("load", "endpoint", "", "p50", "p90", "p99")


def throughput_rows(summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    """Cells under THROUGHPUT; goodput is requests a second, and their share of all."""
    return [
        (
            str(s.load),
            s.endpoint,
            f"{sum(s.errors.values())}/{s.requests}",
            shown(s.throughput),
            shown(s.speedup),
            f"{_number(s.goodput)} ({100 * s.good.value:.0f} %)"
            if s.good is not None and s.goodput is not None
            else "",
        )
        for s in summaries
    ]


def latency_rows(summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    """Cells under LATENCY."""
    rows = []
    for s in summaries:
        for name, found, scale in (
            ("TTFT, ms", s.first, 1000), ("TPOT, ms", s.per_token, 1000), ("whole, s", s.whole, 1),
        ):  # fmt: skip
            head = (str(s.load), s.endpoint) if found is s.first else ("", "")
            rows.append((*head, name, *(shown(figure, scale) for figure in found.values())))
    return rows


def shown(figure: Figure | None, scale: float = 1.0) -> str:
    """``12.3 (11.9-12.8)``; an end that is not known is a ``?``."""
    if figure is None:
        return ""
    value = _number(figure.value * scale)
    if figure.low is None and figure.high is None:
        return value
    ends = ["?" if end is None else _number(end * scale) for end in (figure.low, figure.high)]
    return f"{value} ({ends[0]}-{ends[1]})"


def _number(value: float) -> str:
    """Three significant digits."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
