"""Sheets of the parallel suite: exact match beside speed of canvas decoding."""

from __future__ import annotations

from paradecode_lab.measure.results import Results
from paradecode_lab.measure.sheet import PLAIN, Line, Sheet, Tile
from paradecode_lab.measure.suites.parallel.columns import NOTES
from paradecode_lab.measure.suites.parallel.methods import REFERENCE, read
from paradecode_lab.measure.suites.parallel.summary import (
    MethodSummary,
    summarise,
    tasks_of,
    too_short_to_rank,
)
from paradecode_lab.measure.suites.parallel.verdicts import is_lossless, verdicts
from paradecode_lab.measure.tables import number, percent, points, spread, times

HEAD = ("output", "exact match", f"minus {REFERENCE}'s", "tokens/forward", "fewer forwards",
        "rows/token", "tokens/s", f"× {REFERENCE}")  # fmt: skip


def sheet_of_parallel(results: Results) -> Sheet:
    """A sheet; tasks are its groups."""
    summaries = summarise(results)
    short = too_short_to_rank(results, summaries)
    machine, settings = results.machine, results.settings
    return Sheet(
        title=f"Canvas decoding on {results.model}",
        lines=tuple(_line(summary) for summary in summaries),
        conditions=(
            ("Model", f"{results.model}, {settings.get('backend')}, greedy"),
            ("Inputs", f"{len(results.items)} held-out instances of "
             f"{len(tasks_of(results.items))} tasks, {settings.get('batch')} in a batch"),
            ("Machine", f"{machine.cpu}, {machine.cores} cores, "
             f"{settings.get('threads') or 'all'} threads"),
            ("Version", f"{results.created[:10]}, commit {results.commit[:12] or 'unknown'}; "
             + ", ".join(f"{name} {found}" for name, found in results.versions.items())),
        ),
        tiles=_tiles(summaries),
        baseline=REFERENCE,
        quality_label="Exact match on tasks with checkable answers",
        groups_over=False,
        head=HEAD,
        notes=(
            *(f"{verdict.word}: {verdict.target}." for verdict in verdicts(results)),
            *(f"{name}: failed: {reason}" for name, reason in results.failed.items()),
            *NOTES,
        ),
        doubts=(short,) if short else (),
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
        cells=(
            _badge(summary), percent(total.exact), points(versus.gain) if versus else "",
            spread(total.per_forward), times(versus.forwards) if versus else "",
            number(total.rows), spread(total.per_second), times(versus.seconds) if versus else "",
        ),
        muted=is_plain,
    )  # fmt: skip


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
