"""What a suite runs in one engine, and the run: every batch by every method, by turns."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode.measure.journal import Journal
from paradecode.measure.machine import stamp
from paradecode.measure.play import Check, Unit, play
from paradecode.measure.prompts import Item
from paradecode.measure.provenance import versions
from paradecode.measure.results import EngineInfo, ItemInfo, Results
from paradecode.methods.registry import Spec

Progress = Callable[[int, int], None]
"""Told (generations that are new, generations in all)."""


@dataclass(frozen=True)
class Cases:
    """What is measured.

    Attributes:
        specs: methods; an output is compared with that of its reference.
        references: spec -> spec of the plain mode; what is missing is plain itself.
        items: what the records are about.
        units: batches, in the order in which all methods get them.
        sampling: of all requests.
        check: whether an output is right.
        settings: what must be the same for measurements to be comparable.
        facts: further settings of the result.
        tenants: each method has a tenant of its own in each round and at each batch size: it may
            learn from its own earlier answers there, from nobody else's, and never meets a prompt
            twice.
        warm_up_tokens: of the longest batch of each size, which is decoded first and does not
            count, because first calls allocate memory; None decodes it to the end.
    """

    specs: Sequence[Spec]
    references: Mapping[str, str]
    items: Sequence[ItemInfo]
    units: Sequence[Unit]
    sampling: SamplingParams
    check: Check
    settings: Mapping[str, Any]
    facts: Mapping[str, Any] = field(default_factory=dict)
    tenants: bool = False
    warm_up_tokens: int | None = None

    def salt(self, spec: Spec, unit: Unit) -> str:
        return f"{spec} batch {unit.batch} round {unit.round}" if self.tenants else ""


def units_of(items: Sequence[Item], batch: int, round: int = 0, first: int = 0) -> list[Unit]:
    """Items in groups of ``batch``, numbered from ``first``; the last may be smaller."""
    starts = range(0, len(items), batch)
    return [
        Unit(round, number, tuple(items[start : start + batch]))
        for number, start in enumerate(starts, first)
    ]


def measure_cases(llm: LLM, cases: Cases, journal: Path, progress: Progress) -> Results:
    """Measure all cases, or what an interrupted run has left of them.

    Args:
        journal: file of the records as they come.

    Raises:
        InvalidInput: the journal is another run's.
    """
    settings = {**cases.settings, "backend": llm.backend.name}
    kept = Journal(journal, {"model": llm.model, **settings})
    failed = run_all(llm, cases, kept, progress)
    asked = {
        (str(spec), unit.batch, unit.round, item.id)
        for spec in cases.specs
        for unit in cases.units
        for item in unit.items
    }
    # A batch that a kill has cut in the journal was run again: the last of two records counts.
    records = {(r.engine, r.batch, r.round, r.item): r for r in kept.records}
    return Results(
        **stamp(),
        model=llm.model,
        settings={**settings, **cases.facts},
        items=tuple(cases.items),
        engines=tuple(_engine(llm, spec, cases, failed.get(str(spec), "")) for spec in cases.specs),
        records=tuple(record for key, record in records.items() if key in asked),
    )


def run_all(llm: LLM, cases: Cases, journal: Journal, progress: Progress) -> dict[str, str]:
    """Measure what the journal has not yet, methods in an order drawn afresh for each batch.

    A slow minute of the machine so hurts all alike.

    Returns:
        Method -> why it failed. It is left out from then on; the others are not disturbed.
    """
    done = {(r.engine, r.batch, r.round, r.item) for r in journal.records if not r.error}
    names = {str(spec): spec for spec in cases.specs}

    def is_left(name: str, unit: Unit) -> bool:
        return any((name, unit.batch, unit.round, item.id) not in done for item in unit.items)

    left = {name: [unit for unit in cases.units if is_left(name, unit)] for name in names}
    total = len(names) * sum(unit.batch for unit in cases.units)
    progress(total - sum(unit.batch for own in left.values() for unit in own), total)
    failed: dict[str, str] = {}

    def guarded(name: str, unit: Unit, salt: str, keep: bool) -> None:
        try:
            records = play(llm, names[name], unit, cases.sampling, cases.check, salt)
        except Exception as error:  # Whatever a method does wrong is its own failure.
            failed[name] = f"{type(error).__name__}: {error}"
            progress(sum(unit.batch for unit in left.pop(name)), total)
            return
        if keep:
            for record in records:
                journal.keep(record)
            left[name].pop(0)
            progress(unit.batch, total)

    for unit in _warm_ups(cases):
        for name in [name for name, own in left.items() if own]:
            guarded(name, unit, f"{name} warm-up" if cases.tenants else "", keep=False)
    for unit in cases.units:
        order = [name for name, own in left.items() if own and own[0] is unit]
        seed = f"{cases.sampling.seed}/{unit.batch}/{unit.round}/{unit.number}"
        random.Random(seed).shuffle(order)
        for name in order:
            guarded(name, unit, cases.salt(names[name], unit), keep=True)
    return failed


def _warm_ups(cases: Cases) -> list[Unit]:
    """The batch with the longest prompts of each size."""
    longest: dict[int, Unit] = {}
    for unit in sorted(cases.units, key=lambda unit: sum(len(i.token_ids) for i in unit.items)):
        longest[unit.batch] = unit
    most = cases.warm_up_tokens
    if most is None:
        return list(longest.values())

    def shorter(item: Item) -> Item:
        return replace(item, max_tokens=min(item.max_tokens, most))

    return [replace(unit, items=tuple(map(shorter, unit.items))) for unit in longest.values()]


def _engine(llm: LLM, spec: Spec, cases: Cases, failure: str) -> EngineInfo:
    name = str(spec)
    reference = cases.references.get(name)
    return EngineInfo(
        name=name,
        peer="paradecode",
        weights=llm.backend.name,
        mode="plain" if reference is None else name,
        reference=reference,
        versions=versions(),
        settings={"decoder": name},
        status="failed" if failure else "ok",
        reason=failure,
        guarantee=spec.guarantee,
    )
