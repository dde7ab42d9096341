"""The suite's tables. Every line with a speed has the exact match beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paradecode_lab.measure.results import Results
from paradecode_lab.measure.suites.parallel.methods import IN_BLOCKS, REFERENCE
from paradecode_lab.measure.suites.parallel.summary import (
    MethodComparison,
    MethodFigures,
    MethodSummary,
    tasks_of,
    too_short_to_rank,
)
from paradecode_lab.measure.suites.parallel.verdicts import TargetVerdict
from paradecode_lab.measure.tables import (
    Column,
    ends,
    markdown,
    number,
    percent,
    points,
    spread,
    table,
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
    """A cell about the comparison with the reference; empty where there is none."""
    return lambda summary: cell(summary.versus) if summary.versus else ""


def in_blocks(summary: MethodSummary) -> str:
    """Speed over the reference's in blocks; empty where there is none."""
    return times(summary.blocks.seconds) if summary.blocks else ""


METHOD: Column[MethodSummary] = Column("method", lambda s: s.method)
COLUMNS: tuple[Column[MethodSummary], ...] = (
    METHOD,
    Column("exact match", lambda s: percent(s.total.exact)),
    Column(f"minus `{REFERENCE}`'s", versus(lambda v: points(v.gain))),
    Column("tokens/forward", lambda s: spread(s.total.per_forward)),
    Column("fewer forwards", versus(lambda v: times(v.forwards))),
    Column("tokens/deciding forward", lambda s: value(s.total.per_deciding)),
    Column("fewer deciding", versus(lambda v: times(v.deciding))),
    Column("rows/token", lambda s: number(s.total.rows)),
    Column("fewer rows", versus(lambda v: times(v.rows))),
    Column("tokens/s", lambda s: spread(s.total.per_second)),
    Column(f"x `{REFERENCE}`", versus(lambda v: times(v.seconds))),
    Column(f"x `{IN_BLOCKS}`", in_blocks),
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


def report(
    results: Results, summaries: Sequence[MethodSummary], found: Sequence[TargetVerdict]
) -> str:
    """Conditions, verdicts, all methods, exact match and parallelism by task, definitions."""
    quoted: Column[MethodSummary] = Column("method", lambda s: f"`{s.method}`")
    parts = [
        "# Quality against speed of canvas decoding",
        _conditions(results),
        _verdicts(found),
        markdown((quoted, *COLUMNS[1:]), summaries),
        *([f"**{short}**"] if (short := too_short_to_rank(results, summaries)) else []),
        "## By task",
        "Exact match in %, and in brackets tokens a deciding forward. *Several* right answers mean "
        "that the tokens depend on one another when the prompt is known.",
        _tasks(results, summaries),
    ]
    if results.failed:
        lines = [(f"`{name}`", why.replace("|", "/")) for name, why in results.failed.items()]
        parts += ["Not, or not completely, measured:", table(("method", "reason"), lines)]
    if results.commit.endswith("+"):
        parts.append("The working tree had uncommitted changes.")
    return "\n\n".join([*parts, *NOTES]) + "\n"


def _conditions(results: Results) -> str:
    machine, settings = results.machine, results.settings
    tasks = tasks_of(results.items)
    canvases = sorted({item.max_tokens for item in results.items})
    versions = ", ".join(f"{name} {found}" for name, found in results.versions.items())
    return "\n".join(
        [
            f"- Model: {results.model} (`{settings['weights'][:12]}`), {settings['backend']}, "
            "greedy",
            f"- {len(results.items)} held-out instances of {len(tasks)} tasks, seed "
            f"{settings['seed']}, canvases of {' or '.join(map(str, canvases))} "
            f"positions, {settings['batch']} in a batch",
            f"- Machine: {machine.cpu}, {machine.cores} cores, "
            f"{machine.memory_bytes / 2**30:.0f} GiB; {settings['threads'] or 'all'} threads",
            f"- {versions}, Python {machine.python}; {results.created[:10]}, commit "
            f"`{results.commit[:12] or 'unknown'}`",
        ]
    )


def _verdicts(found: Sequence[TargetVerdict]) -> str:
    lines = []
    for verdict in found:
        lines.append(f"- **{verdict.word}**: {verdict.target}")
        lines += [f"    - {line}" for line in verdict.evidence]
    return "\n".join(lines)


def _tasks(results: Results, summaries: Sequence[MethodSummary]) -> str:
    tasks = sorted(tasks_of(results.items), key=lambda task: BY_NAME[task].free)
    kinds = ["*right answers*", *("several" if BY_NAME[task].free else "one" for task in tasks)]
    rows = [
        (f"`{summary.method}`", *(_cell(summary.tasks[task]) for task in tasks))
        for summary in summaries
    ]
    return table(["method", *tasks], [kinds, *rows])


def _cell(found: MethodFigures) -> str:
    return f"{100 * found.exact.value:.0f} ({value(found.per_deciding)})"
