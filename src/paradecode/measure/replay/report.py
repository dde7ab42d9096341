"""Outcomes as a table for people, and as records for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from paradecode.measure.replay.outcome import ReplayOutcome

DEPTHS = 3
"""Draft positions that the table shows."""
DERIVED = (
    "acceptance",
    "mean_acceptance_length",
    "tokens_per_forward",
    "forwards_saved",
    "drafter_seconds_per_token",
    "seconds",
    "tokens_per_second",
)
"""Figures of a record beside the sums that they are made of."""


def outcome_record(outcome: ReplayOutcome, plain: ReplayOutcome) -> dict[str, Any]:
    """One method, as JSON holds it: totals over all requests and for each group."""

    def totals(group: str | None) -> dict[str, Any]:
        found = outcome.totals(group)
        derived = {name: getattr(found, name) for name in DERIVED}
        return {**asdict(found), **derived, "speed_up": outcome.speed_up(plain, group)}

    return {
        "method": outcome.spec,
        "exact": outcome.exact,
        "total": totals(None),
        "groups": {name: totals(name) for name in outcome.groups},
    }


def outcome_table(
    outcomes: Sequence[ReplayOutcome], plain: ReplayOutcome, by_group: bool = False
) -> Table:
    """All methods, the fastest first; ``~`` marks figures that are estimates.

    ``kept`` is the share of draft tokens accepted at depth 1, 2, 3 in percent; ``saved`` counts
    forwards against plain decoding; ``us`` is the method's own time in microseconds a token.

    Args:
        by_group: a row for each group under every method.
    """
    tokens = plain.totals().generated
    table = Table(title=f"{tokens} tokens, by replay", box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("method", overflow="fold", min_width=16)
    for name in ("speed-up", "tok/fwd", "length", "% kept", "drafted", "saved", "us"):
        table.add_column(name, justify="right", no_wrap=True)
    ordered = sorted(outcomes, key=lambda outcome: -outcome.speed_up(plain))
    for outcome in (plain, *ordered):
        table.add_row(escape(outcome.spec), *_cells(outcome, plain, None))
        for group in outcome.groups if by_group else ():
            table.add_row(f"  {escape(group)}", *_cells(outcome, plain, group))
    if not all(outcome.exact for outcome in outcomes):
        table.caption = "~ an estimate: the method reads what no recording holds"
    return table


def _cells(outcome: ReplayOutcome, plain: ReplayOutcome, group: str | None) -> list[str]:
    totals, about = outcome.totals(group), "" if outcome.exact else "~"
    return [
        f"{about}{outcome.speed_up(plain, group):.2f}",
        f"{about}{totals.tokens_per_forward:.2f}",
        f"{about}{totals.mean_acceptance_length:.2f}",
        " ".join(f"{100 * share:.0f}" for share in totals.acceptance[:DEPTHS]),
        str(totals.drafted),
        str(totals.forwards_saved),
        f"{1e6 * totals.drafter_seconds_per_token:.0f}",
    ]
