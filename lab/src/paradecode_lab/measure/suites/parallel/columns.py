"""The suite's tables, where every line with a speed also has the share of exact matches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paradecode_lab.measure.results import Results
from paradecode_lab.measure.sheet import MoreFigures
from paradecode_lab.measure.suites.parallel.methods import IN_BLOCKS, REFERENCE
from paradecode_lab.measure.suites.parallel.summary import (
    MethodComparison,
    MethodFigures,
    MethodSummary,
    tasks_of,
)
from paradecode_lab.measure.tables import (
    Column,
    ends,
    number,
    percent,
    points,
    spread,
    times,
    value,
)
from paradecode_lab.measure.tasks.tasks import BY_NAME

NOTES = (
    f"All ratios are a token, paired with `{REFERENCE}` (one token a forward, no cache) on the "
    "same batches, 95 % bootstrap intervals in brackets. Exact match: Wilson's interval; its "
    "difference: Bonett and Price's paired one.",
    "Tokens are those of the output with its end of text. A deciding forward decided one of them; "
    "the others decided only what lies behind, which is easy, so their share flatters every policy "
    "on a long canvas. Rows: positions computed, prompt included.",
    "Identical: outputs equal, token by token, to `static` with the same blocks and no cache.",
)


def versus(cell: Callable[[MethodComparison], str]) -> Callable[[MethodSummary], str]:
    """Make a cell about the comparison with the reference, which is empty without a comparison."""
    return lambda summary: cell(summary.versus) if summary.versus else ""


def in_blocks(summary: MethodSummary) -> str:
    """Return the speed over that of the reference in blocks; empty if it was not measured."""
    return times(summary.blocks.seconds) if summary.blocks else ""


METHOD: Column[MethodSummary] = Column("method", lambda s: s.method)
COLUMNS: tuple[Column[MethodSummary], ...] = (
    METHOD,
    Column("exact match", lambda s: percent(s.total.exact)),
    Column(f"minus {REFERENCE}'s", versus(lambda v: points(v.gain))),
    Column("tokens/forward", lambda s: spread(s.total.per_forward)),
    Column("fewer forwards", versus(lambda v: times(v.forwards))),
    Column("tokens/deciding forward", lambda s: value(s.total.per_deciding)),
    Column("fewer deciding", versus(lambda v: times(v.deciding))),
    Column("rows/token", lambda s: number(s.total.rows)),
    Column("fewer rows", versus(lambda v: times(v.rows))),
    Column("tokens/s", lambda s: spread(s.total.per_second)),
    Column(f"× {REFERENCE}", versus(lambda v: times(v.seconds))),
    Column(f"× {IN_BLOCKS}", in_blocks),
    Column("identical", lambda s: f"{s.plain.identical}/{s.plain.items}" if s.plain else ""),
)
BRIEF: tuple[Column[MethodSummary], ...] = (
    METHOD,
    Column("exact %", lambda s: f"{100 * s.total.exact.value:.1f}"),
    Column("points", versus(lambda v: f"{100 * v.gain.value:+.1f}")),
    Column("tok/fwd", lambda s: value(s.total.per_forward)),
    Column("fewer rows", versus(lambda v: ends(v.rows))),
    Column("x as fast", versus(lambda v: ends(v.seconds))),
    Column(f"x {IN_BLOCKS}", in_blocks),
)
"""Columns for a terminal, where only ratios have intervals."""


def by_task(results: Results, summaries: Sequence[MethodSummary]) -> MoreFigures:
    """Return the exact match and the tokens per deciding forward of each task.

    Tasks with a single right answer come first.
    """
    tasks = sorted(tasks_of(results.items), key=lambda task: BY_NAME[task].free)
    kinds = ("right answers", *("several" if BY_NAME[task].free else "one" for task in tasks))
    said = (
        "By task: exact match in %, and in brackets tokens a deciding forward. Several right "
        "answers mean that the tokens depend on one another when the prompt is known."
    )
    rows = ((s.method, *(_cell(s.tasks[task]) for task in tasks)) for s in summaries)
    return MoreFigures(said, ("method", *tasks), (kinds, *rows))


def _cell(found: MethodFigures) -> str:
    return f"{100 * found.exact.value:.0f} ({value(found.per_deciding)})"
