"""Every batch of prompts by every decoder, in an order drawn afresh each time."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode.measure.journal import Journal
from paradecode.measure.prompts import Item
from paradecode.measure.suites.generation.play import Sampling, Unit, play
from paradecode.methods.registry import Spec

WARM_UP_TOKENS = 16


def units_of(
    items: Sequence[Item], batch: int, answers: Mapping[str, tuple[str, ...]]
) -> list[Unit]:
    """Items in groups of ``batch``, the kinds of task mixed as in real traffic.

    What is left over when the items are dealt out is not run at this batch size.

    Raises:
        InvalidInput: there are fewer items than a batch has.
    """
    if batch > len(items):
        raise InvalidInput("batch", batch, f"there are {len(items)} inputs; give more, or less")
    order = list(items) if batch == 1 else mixed(items)
    starts = range(0, len(order) - batch + 1, batch)
    return [
        Unit(
            number, own := tuple(order[start : start + batch]),
            {item.id: answers[item.id] for item in own if item.id in answers},
        )
        for number, start in enumerate(starts)
    ]  # fmt: skip


def mixed(items: Sequence[Item]) -> list[Item]:
    """The first item of each group, then the second of each, and so on."""
    seen: dict[str, int] = {}
    ranks = []
    for item in items:
        ranks.append(seen.get(item.group, 0))
        seen[item.group] = ranks[-1] + 1
    return [items[index] for index in sorted(range(len(items)), key=ranks.__getitem__)]


def run_all(
    llm: LLM,
    specs: Sequence[Spec],
    plan: Mapping[int, Sequence[Unit]],
    rounds: int,
    sampling: Sampling,
    journal: Journal,
    progress: Callable[[int, int], None],
) -> dict[str, str]:
    """Measure what the journal has not yet.

    Each decoder is a tenant of its own in each round and at each batch size: it may learn from its
    own earlier answers there, from nobody else's, and never meets a prompt twice.

    Args:
        plan: batch size -> its units.
        progress: told (generations that are new, generations in all).

    Returns:
        Decoder -> why it failed. It is left out from then on; the others are not disturbed.
    """
    done = {(r.engine, r.batch, r.round, r.item) for r in journal.records if not r.error}

    def missing(spec: Spec, batch: int, round: int, unit: Unit) -> bool:
        return any((str(spec), batch, round, item.id) not in done for item in unit.items)

    turns = [
        (batch, round, unit, [s for s in specs if missing(s, batch, round, unit)])
        for batch, units in plan.items()
        for round in range(rounds)
        for unit in units
    ]
    total = rounds * len(specs) * sum(batch * len(units) for batch, units in plan.items())
    left = {str(spec): sum(b * (spec in own) for b, _, _, own in turns) for spec in specs}
    progress(total - sum(left.values()), total)
    failed: dict[str, str] = {}

    def guarded(spec: Spec, action: Callable[[], None]) -> None:
        if str(spec) in failed:
            return
        try:
            action()
        except Exception as error:  # Whatever a method does wrong is its own failure.
            failed[str(spec)] = f"{type(error).__name__}: {error}"
            progress(left[str(spec)], total)

    def measure(spec: Spec, batch: int, round: int, unit: Unit) -> None:
        salt = f"{spec} batch {batch} round {round}"
        for record in play(llm, spec, unit, sampling, salt, round):
            journal.keep(record)
        left[str(spec)] -= batch
        progress(batch, total)

    for spec in specs:
        if left[str(spec)]:
            guarded(spec, partial(_warm_up, llm, spec, plan, sampling))
    for batch, round, unit, own in turns:
        order = list(own)
        random.Random(f"{sampling.seed}/{batch}/{round}/{unit.number}").shuffle(order)
        for spec in order:
            guarded(spec, partial(measure, spec, batch, round, unit))
    return failed


def _warm_up(llm: LLM, spec: Spec, plan: Mapping[int, Sequence[Unit]], sampling: Sampling) -> None:
    """The longest prompts of each batch size, briefly: first calls allocate and fault pages in."""
    for units in plan.values():
        unit = max(units, key=lambda unit: sum(len(item.token_ids) for item in unit.items))
        short = [replace(i, max_tokens=min(i.max_tokens, WARM_UP_TOKENS)) for i in unit.items]
        play(llm, spec, Unit(0, tuple(short), {}), sampling, f"{spec} warm-up")
