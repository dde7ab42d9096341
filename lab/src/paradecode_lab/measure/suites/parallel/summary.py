"""Computes figures from records: exact match, costs per token, and paired comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paradecode_lab.measure.results import Counts, ItemInfo, Record, Results
from paradecode_lab.measure.statistics import (
    Interval,
    gain,
    interval,
    ratio,
    ratio_of_ratios,
    wilson,
)
from paradecode_lab.measure.suites.parallel.methods import IN_BLOCKS, REFERENCE, plain_of
from paradecode_lab.measure.too_short import too_short

Batch = tuple[str, ...]
"""Ids of the items that were decoded together."""


@dataclass(frozen=True)
class BatchCost:
    """Total costs of one batch.

    Attributes:
        tokens: number of output tokens.
        forwards, deciding: numbers of forwards, and of those that decided an output token.
        rows: number of computed rows.
        seconds: wall time.
    """

    tokens: float
    forwards: float
    deciding: float
    rows: float
    seconds: float

    def a_token(self, name: str) -> tuple[float, float]:
        """Return the tokens and the cost with this name, which are two columns of a ratio."""
        return self.tokens, getattr(self, name)


@dataclass(frozen=True)
class MethodRecords:
    """The records of one method by item, and the costs of its batches."""

    answers: dict[str, Record] = field(default_factory=dict)
    costs: dict[Batch, BatchCost] = field(default_factory=dict)


@dataclass(frozen=True)
class MethodComparison:
    """A method compared with another one, on the items that both decoded.

    Attributes:
        gain: share of exact matches minus the other's; below 0 is a loss.
        forwards, deciding, rows: the other's number per token over this method's.
        seconds: the other's seconds per token over this method's.
        identical: number of outputs that equal the other's, token by token.
    """

    items: int
    gain: Interval
    forwards: Interval | None
    deciding: Interval | None
    rows: Interval | None
    seconds: Interval | None
    identical: int


@dataclass(frozen=True)
class MethodFigures:
    """The figures of one method on some items.

    Attributes:
        right, items: number of exact matches and of items; ``exact`` is their ratio.
        per_forward: output tokens per target forward.
        per_deciding: output tokens per forward that decided at least one of them; forwards that
            only decide positions after the end of the text do not count.
        rows: computed rows per token.
        per_second: tokens a second of wall time, for all requests of a batch together.
    """

    right: int
    items: int
    exact: Interval
    per_forward: Interval | None
    per_deciding: Interval | None
    rows: float
    per_second: Interval | None


@dataclass(frozen=True)
class MethodSummary:
    """Everything that the tables show of one method.

    Attributes:
        versus: comparison with the reference; None for the reference, or if it was not measured.
        blocks: comparison with the reference in blocks, which spends few forwards on positions
            after the end of the text; None in the same cases.
        plain: comparison with the plain method that ``plain_of`` returns; None for a plain method
            itself, or if that method was not measured.
    """

    method: str
    total: MethodFigures
    tasks: dict[str, MethodFigures]
    versus: MethodComparison | None
    blocks: MethodComparison | None
    plain: MethodComparison | None


def summarise(results: Results) -> list[MethodSummary]:
    """Summarise each method that decoded all items, in the order of ``results``."""
    done = measured(results)
    return [_summary(method, done, results.items) for method in done]


def measured(results: Results) -> dict[str, MethodRecords]:
    """Return method -> its records and costs, without methods that did not answer every item."""
    task = {item.id: item.group for item in results.items}
    batches: dict[str, dict[tuple[str, int, int], list[Record]]] = {}
    for record in results.records:
        own = batches.setdefault(record.engine, {})
        own.setdefault((task[record.item], record.batch, record.unit), []).append(record)
    found = {}
    for engine in results.engines:
        one = MethodRecords()
        for records in batches.get(engine.name, {}).values():
            one.answers.update({record.item: record for record in records})
            # Batches from which a choice of items has removed some do not count.
            if len(records) == records[0].batch:
                one.costs[tuple(record.item for record in records)] = _cost(records)
        if one.answers and one.answers.keys() == {item.id for item in results.items}:
            found[engine.name] = one
    return found


def compared(one: MethodRecords, other: MethodRecords) -> MethodComparison | None:
    """Compare two methods, paired by item and batch.

    The result is None if they have no item or batch in common.
    """
    items = [item for item in one.answers if item in other.answers]
    units = [unit for unit in one.costs if unit in other.costs]
    if not items or not units:
        return None
    costs = [(one.costs[unit], other.costs[unit]) for unit in units]
    pairs = [(one.answers[item], other.answers[item]) for item in items]
    return MethodComparison(
        items=len(items),
        gain=gain([(bool(a.right), bool(b.right)) for a, b in pairs]),
        identical=sum(a.token_ids == b.token_ids for a, b in pairs),
        **{
            name: interval(
                [(*a.a_token(name), *b.a_token(name)) for a, b in costs], ratio_of_ratios
            )
            for name in ("forwards", "deciding", "rows", "seconds")
        },
    )


def figures(one: MethodRecords, ids: set[str]) -> MethodFigures:
    """Compute the figures of the batches whose items are all among ``ids``."""
    units = [unit for unit in one.costs if ids.issuperset(unit)]
    answers = [one.answers[item] for unit in units for item in unit]
    costs = [one.costs[unit] for unit in units]
    right = sum(bool(answer.right) for answer in answers)
    return MethodFigures(
        right=right,
        items=len(answers),
        exact=wilson(right, len(answers)),
        per_forward=interval([cost.a_token("forwards") for cost in costs], ratio),
        per_deciding=interval([cost.a_token("deciding") for cost in costs], ratio),
        rows=sum(cost.rows for cost in costs) / max(sum(cost.tokens for cost in costs), 1),
        per_second=interval([cost.a_token("seconds") for cost in costs], ratio),
    )


def too_short_to_rank(results: Results, summaries: Sequence[MethodSummary]) -> str:
    """Return a warning if a run is too short to rank methods by speed, and an empty text otherwise.

    The requests of a batch share their forwards, so a batch counts like a prompt in other suites.
    Every position of a canvas is decoded, so positions count like tokens in other suites.
    """
    batches = next((len(one.costs) for one in measured(results).values()), 0)
    positions = sum(item.max_tokens for item in results.items) / max(1, len(results.items))
    ratios = {one.method: one.versus.seconds for one in summaries if one.versus}
    return too_short(batches, positions, ratios, ("batch", "batches"))


def tasks_of(items: Sequence[ItemInfo]) -> dict[str, set[str]]:
    """Return task -> ids of its items, in the order of the items."""
    tasks: dict[str, set[str]] = {}
    for item in items:
        tasks.setdefault(item.group, set()).add(item.id)
    return tasks


def _cost(records: Sequence[Record]) -> BatchCost:
    counts = [record.counts or Counts() for record in records]
    return BatchCost(
        tokens=sum(len(record.token_ids) for record in records),
        forwards=sum(each.forwards for each in counts),
        deciding=sum(each.deciding for each in counts),
        rows=sum(each.rows for each in counts),
        seconds=sum(record.wall_seconds for record in records),
    )


def _summary(
    method: str, done: Mapping[str, MethodRecords], items: Sequence[ItemInfo]
) -> MethodSummary:
    def against(other: str) -> MethodComparison | None:
        return compared(own, done[other]) if other != method and other in done else None

    own, plain = done[method], plain_of(method)
    versus = against(REFERENCE)
    return MethodSummary(
        method=method,
        total=figures(own, {item.id for item in items}),
        tasks={task: figures(own, ids) for task, ids in tasks_of(items).items()},
        versus=versus,
        blocks=against(IN_BLOCKS),
        plain=versus if plain == REFERENCE else against(plain),
    )
