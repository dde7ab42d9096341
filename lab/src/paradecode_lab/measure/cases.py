"""Runs a suite's measurements in one engine: every method decodes every batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode.methods.specs import Spec
from paradecode.timing.warm_up import warm_up_method, warm_up_plain
from paradecode_lab.measure.journal import Journal
from paradecode_lab.measure.machine import digest_of, versions
from paradecode_lab.measure.play import Check, play
from paradecode_lab.measure.prompts import Item
from paradecode_lab.measure.results import EngineInfo, ItemInfo, Record, Results
from paradecode_lab.measure.spec_files import digests_of
from paradecode_lab.measure.turns import PlayerError, Unit, run, schedule

Progress = Callable[[int, int], None]
"""Called with the number of newly finished generations, and the number of all generations."""


@dataclass(frozen=True)
class Cases:
    """The measurements that a suite wants, and the conditions under which they are made.

    Attributes:
        references: spec -> spec of the plain mode that it is compared with; a spec without an entry
            is itself plain.
        units: batches of ``items``, in the order in which all methods get them.
        settings: settings that two measurements must share to be comparable.
        facts: settings that the result only reports.
        tenants: whether each method has a tenant of its own in each round and at each batch size.
            It can then learn from its own earlier answers there, but not from those of other
            methods, and never sees a prompt twice.
        warm_up_tokens: before the measurement, the batch with the longest prompts of each size
            decodes this many tokens, which allocates memory; None decodes that batch to its end.
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


@dataclass(frozen=True)
class MethodPlayer:
    """A method that takes its turns in the engine.

    If the method raises an error, only this method fails, and the run goes on.
    """

    llm: LLM
    spec: Spec
    cases: Cases
    max_rounds: int = 1 << 30

    @property
    def name(self) -> str:
        return str(self.spec)

    def warm_up(self, units: Sequence[Unit]) -> None:
        """Pay the method's one-off costs, and decode ``units`` once, which allocates their memory.

        Raises:
            PlayerError: the method fails.
        """
        try:
            warm_up_method(self.llm, self.spec, self.cases.sampling)
        except Exception as error:
            raise PlayerError(f"{type(error).__name__}: {error}", fatal=True) from error
        for unit in units:
            self.play(unit, "warm-up")

    def play(self, unit: Unit, tenant: str = "") -> list[Record]:
        salt = f"{self.spec} {tenant or f'batch {unit.batch} round {unit.round}'}"
        cases = self.cases
        try:
            return play(self.llm, self.spec, unit, cases.sampling, cases.check,
                        salt if cases.tenants else "")  # fmt: skip
        except Exception as error:
            raise PlayerError(f"{type(error).__name__}: {error}", fatal=True) from error


def measure_cases(llm: LLM, cases: Cases, journal: Path, progress: Progress) -> Results:
    """Measure all cases that the journal does not already have, and return the results.

    Args:
        journal: file to which each record is written as soon as it is measured; an interrupted run
            resumes from it.

    Raises:
        InvalidInput: the journal belongs to another run.
    """
    settings = {**cases.settings, "backend": llm.backend.name}
    # The loaded weights may hold a merged adapter, which may have been trained again.
    loaded = digest_of(llm.engine.weights)
    kept = Journal(journal, {"model": llm.model, "loaded": loaded, **settings})
    engines = [_engine(llm, spec, cases) for spec in cases.specs]
    kept.expect(engines, cases.items)
    failed = _run(llm, cases, kept, progress)
    asked = {
        (str(spec), unit.batch, unit.round, item.id)
        for spec in cases.specs
        for unit in cases.units
        for item in unit.items
    }
    # If a kill cut a batch short in the journal, the batch was run again: the last record counts.
    records = {(r.engine, r.batch, r.round, r.item): r for r in kept.records}
    return Results(
        **kept.stamp,
        model=llm.model,
        settings={**settings, **cases.facts},
        items=tuple(cases.items),
        engines=tuple(
            replace(one, status="failed", reason=failed[one.name]) if one.name in failed else one
            for one in engines
        ),
        records=tuple(record for key, record in records.items() if key in asked),
    )


def _run(llm: LLM, cases: Cases, journal: Journal, progress: Progress) -> dict[str, str]:
    """Measure what is missing in the journal.

    Returns:
        Method -> why it failed. A method that failed takes no further turns; the others go on.
    """
    players = [MethodPlayer(llm, spec, cases) for spec in cases.specs]
    turns = list(schedule(cases.units, players, journal.done, cases.sampling.seed))
    left = Counter[str]()
    for turn in turns:
        left[turn.player.name] += turn.unit.batch
    total = len(players) * sum(unit.batch for unit in cases.units)
    progress(total - left.total(), total)
    failed: dict[str, str] = {}

    def keep(record: Record) -> None:
        if not record.error:
            journal.keep(record)
            left[record.engine] -= 1
            progress(1, total)

    def lost(name: str, reason: str) -> None:
        failed[name] = reason
        progress(left[name], total)

    if turns:
        warm_up_plain(llm)
    for player in players:
        if left[player.name]:
            try:
                player.warm_up(_longest(cases))
            except PlayerError as error:
                lost(player.name, str(error))
    run([turn for turn in turns if turn.player.name not in failed], keep, lost)
    return failed


def _longest(cases: Cases) -> list[Unit]:
    """Return the batch with the longest prompts of each size, shortened for the warm-up."""
    longest: dict[int, Unit] = {}
    for unit in sorted(cases.units, key=lambda unit: sum(len(i.token_ids) for i in unit.items)):
        longest[unit.batch] = unit
    most = cases.warm_up_tokens
    if most is None:
        return list(longest.values())

    def shorter(item: Item) -> Item:
        return replace(item, max_tokens=min(item.max_tokens, most))

    return [replace(unit, items=tuple(map(shorter, unit.items))) for unit in longest.values()]


def _engine(llm: LLM, spec: Spec, cases: Cases) -> EngineInfo:
    name, files = str(spec), digests_of(spec)
    reference = cases.references.get(name)
    return EngineInfo(
        name=name,
        peer="paradecode",
        weights=llm.backend.name,
        mode="plain" if reference is None else name,
        reference=reference,
        versions=versions(),
        settings={"decoder": name, **({"files": files} if files else {})},
        guarantee=spec.guarantee,
    )
