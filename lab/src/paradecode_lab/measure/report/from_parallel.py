"""Makes sheets of the suite ``parallel``: exact match and speed of canvas decoding."""

from __future__ import annotations

from paradecode_lab.measure.report.from_results import conditions
from paradecode_lab.measure.results import Results
from paradecode_lab.measure.sheet import PLAIN, Line, Sheet, Tile
from paradecode_lab.measure.statistics import Interval
from paradecode_lab.measure.suites.parallel.columns import COLUMNS, NOTES, by_task
from paradecode_lab.measure.suites.parallel.methods import REFERENCE, read
from paradecode_lab.measure.suites.parallel.summary import (
    MethodSummary,
    summarise,
    tasks_of,
    too_short_to_rank,
)
from paradecode_lab.measure.suites.parallel.verdicts import is_lossless, verdicts
from paradecode_lab.measure.tables import cells, heads, number, points
from paradecode_lab.measure.tasks.tasks import BY_NAME

SWEEPS = {"static": {"steps"}, "threshold": {"threshold"}, "factor": {"factor"}}
"""Policy -> the setting that says how many tokens it decides at once."""


def sheet_of_parallel(results: Results) -> Sheet:
    """Make the sheet of a result of the suite ``parallel``; its groups are the tasks."""
    summaries = summarise(results)
    short = too_short_to_rank(results, summaries)
    settings = results.settings
    canvases = " or ".join(map(str, sorted({item.max_tokens for item in results.items})))
    return Sheet(
        title=f"Canvas decoding on {results.model}",
        lines=tuple(_line(summary) for summary in summaries),
        conditions=conditions(
            results,
            f"weights {settings.get('weights', '')[:12]}, {settings.get('backend')}, greedy",
            f"{len(results.items)} held-out instances of {len(tasks_of(results.items))} tasks, "
            f"seed {settings.get('seed')}, canvases of {canvases} positions, "
            f"{settings.get('batch')} in a batch",
        ),
        tiles=_tiles(summaries),
        baseline=REFERENCE,
        quality_label="Exact match on tasks with checkable answers",
        groups_over=False,
        head=("output", *heads(COLUMNS[1:])),
        notes=(
            *("; ".join([f"{v.word}: {v.target}", *v.evidence]) for v in verdicts(results)),
            *(f"{name}: failed: {reason}" for name, reason in results.failed.items()),
            *NOTES,
        ),
        doubts=(short,) if short else (),
        more=(by_task(results, summaries),),
    )  # fmt: skip


def _line(summary: MethodSummary) -> Line:
    spec, total, versus = read(summary.method), summary.total, summary.versus
    is_plain = summary.method == REFERENCE
    return Line(
        name=summary.method,
        family=PLAIN if is_plain else spec.method.name,
        standing=_standing(summary),
        badge=_badge(summary),
        speed=total.per_second,
        over=versus.seconds if versus else None,
        quality=total.exact,
        groups={
            task: found.per_second for task, found in summary.tasks.items() if found.per_second
        },
        per_forward=total.per_forward,
        by_parallelism=_by_parallelism(summary),
        cells=(_badge(summary), *cells(COLUMNS[1:], summary)),
        muted=is_plain,
    )  # fmt: skip


def _by_parallelism(summary: MethodSummary) -> dict[str, tuple[Interval, Interval]]:
    """Return for each task the tokens per deciding forward and the exact match.

    The result is empty if the method has other settings than those of ``SWEEPS``.
    """
    spec = read(summary.method)
    if not spec.settings.keys() <= SWEEPS.get(spec.method.name, set()) or (
        spec.method.name not in SWEEPS
    ):
        return {}
    return {
        f"{task} (several)" if BY_NAME[task].free else task: (
            found.per_deciding,
            found.exact,
        )
        for task, found in sorted(summary.tasks.items(), key=lambda each: BY_NAME[each[0]].free)
        if found.per_deciding
    }


def _standing(summary: MethodSummary) -> str:
    if summary.method == REFERENCE:
        return ""
    if read(summary.method).guarantee != "exact":
        return "lossy"
    plain = summary.plain
    return "exact" if plain is None or plain.identical == plain.items else "broken"


def _badge(summary: MethodSummary) -> str:
    if summary.method == REFERENCE:
        return "plain decoding"
    standing, plain = _standing(summary), summary.plain
    counted = f" {plain.identical}/{plain.items}" if plain else ""
    if standing == "broken":
        return f"differs from plain:{counted} equal"
    return f"{standing}{counted}" if standing == "exact" else f"lossy:{counted} as plain"


def _tiles(summaries: list[MethodSummary]) -> tuple[Tile, ...]:
    reference = next((s for s in summaries if s.method == REFERENCE), None)
    kept = [
        (versus.seconds.value, summary)
        for summary in summaries
        if (versus := summary.versus) is not None and versus.seconds and is_lossless(versus.gain)
    ]
    tiles = []
    if kept:
        value, best = max(kept, key=lambda entry: entry[0])
        assert best.versus is not None
        tiles.append(Tile(f"{number(value)}×", f"{REFERENCE}, with {best.method}",
                          f"exact match {points(best.versus.gain)}"))  # fmt: skip
    if reference is not None:
        exact = reference.total.exact
        tiles.append(Tile(f"{100 * exact.value:.1f} %", f"exact match of {REFERENCE}",
                          "one token a forward"))  # fmt: skip
    return tuple(tiles)
