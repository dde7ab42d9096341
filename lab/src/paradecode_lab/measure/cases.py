"""The cases of a suite in one engine, and their run: every batch by every method, by turns."""

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
"""Called with the number of new generations and of all generations."""


@dataclass(frozen=True)
class Cases:
    """The measurements to make.

    Attributes:
        references: spec -> spec of its plain mode; a spec without an entry is plain itself.
        units: batches of ``items``, in the order in which all methods get them.
        settings: settings that must be equal for measurements to be comparable.
        facts: further settings of the result.
        tenants: whether each method has a tenant of its own in each round and at each batch size.
            It can then learn from its own earlier answers there, but not from others', and never
            sees a prompt twice.
        warm_up_tokens: tokens of the longest batch of each size that are decoded first and do not
            count, because this allocates memory; None decodes it to the end.
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
    """A method that takes its turns in the engine. Its errors are its own failure, not that of
    the run."""

    llm: LLM
    spec: Spec
    cases: Cases
    max_rounds: int = 1 << 30

    @property
    def name(self) -> str:
        return str(self.spec)

    def warm_up(self, units: Sequence[Unit]) -> None:
        """Pay the method's one-off costs, and allocate the memory of ``units``; raises
        PlayerError."""
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
    """Measure all cases, or those that an interrupted run has left.

    Args:
        journal: file to which records are written as they come.

    Raises:
        InvalidInput: the journal is another run's.
    """
    settings = {**cases.settings, "backend": llm.backend.name}
    loaded = digest_of(llm.engine.weights)  # With an adapter, which may have been trained again.
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
    # A batch that a kill has cut in the journal was run again: the last of two records counts.
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
        Method -> why it failed. It is left out from then on; the others are not disturbed.
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
