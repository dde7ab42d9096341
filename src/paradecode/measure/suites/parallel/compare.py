"""Two results side by side: what changed, method by method, on the instances both have."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.core.errors import InvalidInput
from paradecode.measure.statistics import Interval, wilson
from paradecode.measure.suites.parallel.results import Results
from paradecode.measure.suites.parallel.summary import Comparison, Measured, compared, measured
from paradecode.measure.tables import percent, points, times

HEAD = ("method", "exact match", "minus before", "fewer forwards", "fewer rows", "x as fast",
        "identical")  # fmt: skip


@dataclass(frozen=True)
class Change:
    """One method in both results: exact match now, and now against before."""

    method: str
    exact: Interval
    versus: Comparison


def changes(before: Results, now: Results) -> list[Change]:
    """Every method that both results have, in the order of ``now``.

    Raises:
        InvalidInput: nothing can be compared.
    """
    same = {item.id for item in before.items if item in now.items}
    old, new = (_only(measured(results), same) for results in (before, now))
    found = []
    for method in now.methods:
        if method not in old or method not in new:
            continue
        versus = compared(new[method], old[method])
        if versus is not None:
            answers = new[method].answers.values()
            exact = wilson(sum(answer.right for answer in answers), len(answers))
            found.append(Change(method, exact, versus))
    if not found:
        fix = "give results with methods, instances and batch in common"
        raise InvalidInput("results", [before.model, now.model], fix)
    return found


def rows(found: list[Change]) -> list[tuple[str, ...]]:
    """Cells under HEAD."""
    return [
        (
            change.method, percent(change.exact), points(change.versus.gain),
            times(change.versus.forwards), times(change.versus.rows),
            times(change.versus.seconds), f"{change.versus.identical}/{change.versus.items}",
        )
        for change in found
    ]  # fmt: skip


def _only(all_: dict[str, Measured], ids: set[str]) -> dict[str, Measured]:
    """Answers and whole batches of these items."""
    return {
        method: Measured(
            {item: answer for item, answer in own.answers.items() if item in ids},
            {unit: cost for unit, cost in own.costs.items() if ids.issuperset(unit)},
        )
        for method, own in all_.items()
    }
