"""From answers to figures: exact match with its interval, costs a token, paired comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paradecode.measure.statistics import (
    Interval,
    gain,
    interval,
    ratio,
    ratio_of_ratios,
    wilson,
)
from paradecode.measure.suites.parallel.methods import REFERENCE, plain_of
from paradecode.measure.suites.parallel.results import Answer, Item, Results

COSTS = ("forwards", "deciding", "rows", "seconds")


@dataclass(frozen=True)
class Cost:
    """Totals of one batch: ``seconds`` belongs to all of its items."""

    tokens: int
    forwards: int
    deciding: int
    rows: int
    seconds: float


@dataclass(frozen=True)
class Measured:
    """One method: its answers by item, its costs by batch (named by the ids of its items)."""

    answers: Mapping[str, Answer]
    costs: Mapping[tuple[str, ...], Cost]


@dataclass(frozen=True)
class Comparison:
    """A method against another one, on what both did.

    Attributes:
        items: how many.
        gain: exact match minus the other's; below 0 is a loss.
        forwards, deciding, rows: how many times fewer a token.
        seconds: how many times faster a token.
        identical: outputs that are the other's token by token.
    """

    items: int
    gain: Interval
    forwards: Interval | None
    deciding: Interval | None
    rows: Interval | None
    seconds: Interval | None
    identical: int


@dataclass(frozen=True)
class Figures:
    """Some items by one method.

    Attributes:
        right, items: counts; ``exact`` is their share.
        per_forward: tokens a target forward.
        per_deciding: tokens a forward that decided any of them, so forwards that only decide the
            end of text behind the answer do not count.
        rows: computed a token.
        per_second: tokens a second of wall time, all of a batch's requests together.
    """

    right: int
    items: int
    exact: Interval
    per_forward: Interval | None
    per_deciding: Interval | None
    rows: float
    per_second: Interval | None


@dataclass(frozen=True)
class Summary:
    """Everything the tables show of one method.

    Attributes:
        versus: against the reference; None for itself, and where that was not measured.
        plain: against ``plain_of`` the method; None for such a one itself, and where that was
            not measured.
    """

    method: str
    total: Figures
    tasks: dict[str, Figures]
    versus: Comparison | None
    plain: Comparison | None


def summarise(results: Results) -> list[Summary]:
    """One summary for each method that did all items, in the order of ``results``."""
    done = measured(results)
    return [_summary(method, done, results.items) for method in results.methods if method in done]


def measured(results: Results) -> dict[str, Measured]:
    """Method -> its answers and costs. A method without an answer to every item is left out."""
    answers: dict[str, dict[str, Answer]] = {}
    costs: dict[str, dict[tuple[str, ...], Cost]] = {}
    for run in results.runs:
        answers.setdefault(run.method, {}).update(zip(run.items, run.answers))
        costs.setdefault(run.method, {})[run.items] = Cost(
            sum(len(answer.tokens) for answer in run.answers),
            sum(answer.forwards for answer in run.answers),
            sum(answer.deciding for answer in run.answers),
            sum(answer.rows for answer in run.answers),
            run.seconds,
        )
    ids = {item.id for item in results.items}
    return {
        method: Measured(own, costs[method])
        for method, own in answers.items()
        if own and own.keys() == ids
    }


def compared(one: Measured, other: Measured) -> Comparison | None:
    """``one`` against ``other``, paired; None when they have no item or no batch in common."""
    items = [item for item in one.answers if item in other.answers]
    units = [unit for unit in one.costs if unit in other.costs]
    if not items or not units:
        return None
    mine, theirs = (
        [[float(getattr(of.costs[u], name)) for u in units] for name in ("tokens", *COSTS)]
        for of in (one, other)
    )
    forwards, deciding, rows, seconds = (
        interval([mine[0], mine[place], theirs[0], theirs[place]], ratio_of_ratios)
        for place in (1, 2, 3, 4)
    )
    pairs = [(one.answers[item], other.answers[item]) for item in items]
    return Comparison(
        items=len(items),
        gain=gain([(a.right, b.right) for a, b in pairs]),
        forwards=forwards,
        deciding=deciding,
        rows=rows,
        seconds=seconds,
        identical=sum(a.tokens == b.tokens for a, b in pairs),
    )


def figures(one: Measured, ids: set[str]) -> Figures:
    """Figures of the batches whose items are all among ``ids``."""
    units = [unit for unit in one.costs if ids.issuperset(unit)]
    answers = [one.answers[item] for unit in units for item in unit]
    costs = [one.costs[unit] for unit in units]
    tokens = [float(cost.tokens) for cost in costs]
    right = sum(answer.right for answer in answers)
    per_forward, per_deciding, per_second = (
        interval([tokens, [float(getattr(cost, name)) for cost in costs]], ratio)
        for name in ("forwards", "deciding", "seconds")
    )
    rows = sum(cost.rows for cost in costs) / max(sum(tokens), 1)
    return Figures(
        right, len(answers), wilson(right, len(answers)), per_forward, per_deciding, rows,
        per_second,
    )  # fmt: skip


def tasks_of(items: Sequence[Item]) -> dict[str, set[str]]:
    """Task -> ids of its items, in the order of the items."""
    tasks: dict[str, set[str]] = {}
    for item in items:
        tasks.setdefault(item.task, set()).add(item.id)
    return tasks


def _summary(method: str, done: Mapping[str, Measured], items: Sequence[Item]) -> Summary:
    own, plain = done[method], plain_of(method)
    versus = _against(method, REFERENCE, done)
    return Summary(
        method=method,
        total=figures(own, {item.id for item in items}),
        tasks={task: figures(own, ids) for task, ids in tasks_of(items).items()},
        versus=versus,
        plain=versus if plain == REFERENCE else _against(method, plain, done),
    )


def _against(method: str, other: str, done: Mapping[str, Measured]) -> Comparison | None:
    return compared(done[method], done[other]) if other != method and other in done else None
