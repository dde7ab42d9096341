"""Two results side by side: what changed for each method, on the instances that both have."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.compare import in_common
from paradecode_lab.measure.results import Results
from paradecode_lab.measure.statistics import Interval, wilson
from paradecode_lab.measure.suites.parallel.summary import MethodComparison, compared, measured
from paradecode_lab.measure.tables import Column, percent, points, times


@dataclass(frozen=True)
class MethodChange:
    """One method in both results: its exact match now, and its change."""

    method: str
    exact: Interval
    versus: MethodComparison


COLUMNS: tuple[Column[MethodChange], ...] = (
    Column("method", lambda c: c.method),
    Column("exact match", lambda c: percent(c.exact)),
    Column("minus before", lambda c: points(c.versus.gain)),
    Column("fewer forwards", lambda c: times(c.versus.forwards)),
    Column("fewer rows", lambda c: times(c.versus.rows)),
    Column("x as fast", lambda c: times(c.versus.seconds)),
    Column("identical", lambda c: f"{c.versus.identical}/{c.versus.items}"),
)


def changes(before: Results, now: Results) -> list[MethodChange]:
    """Every method that both results have, in the order of ``now``.

    Raises:
        InvalidInput: nothing can be compared.
    """
    old, new = (measured(results) for results in in_common(before, now))
    found = []
    for method in (name for name in new if name in old):
        versus = compared(new[method], old[method])
        if versus is not None:
            answers = new[method].answers.values()
            exact = wilson(sum(bool(answer.right) for answer in answers), len(answers))
            found.append(MethodChange(method, exact, versus))
    if not found:
        fix = "give results with methods, instances and batch in common"
        raise InvalidInput("results", [before.model, now.model], fix)
    return found
