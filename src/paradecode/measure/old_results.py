"""The schemas that the suites parallel and load had of their own; committed results have them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paradecode.core.checks import anything, build, checked, number, text
from paradecode.core.errors import InvalidInput
from paradecode.measure.machine import Machine
from paradecode.measure.results import (
    Counts,
    EngineInfo,
    ItemInfo,
    Record,
    Results,
    StreamedAnswer,
)


@dataclass(frozen=True)
class OldItem:
    """An instance of a task; ``canvas`` is the length of the output."""

    id: str
    task: str
    prompt: str
    answer: str
    canvas: int


@dataclass(frozen=True)
class OldAnswer:
    """What a method made of an item."""

    tokens: tuple[int, ...]
    text: str
    right: bool
    forwards: int
    rows: int
    deciding: int


@dataclass(frozen=True)
class OldRun:
    """One batch by one method, with the wall seconds of all of it."""

    method: str
    items: tuple[str, ...]
    seconds: float
    answers: tuple[OldAnswer, ...]


@dataclass(frozen=True)
class OldParallel:
    """The file."""

    created: str
    commit: str
    versions: Mapping[str, str]
    model: str
    weights: str
    settings: Mapping[str, Any]
    methods: tuple[str, ...]
    failed: Mapping[str, str]
    machine: Machine
    items: tuple[OldItem, ...]
    runs: tuple[OldRun, ...]


def parallel_results(data: Mapping[str, Any]) -> Results:
    """A result of this schema; raises InvalidInput that names the field."""
    own = {name: value for name, value in data.items() if name not in ("schema", "aggregates")}
    old: OldParallel = build(OldParallel, own, "results")
    backend = text(1 << 10)("results.settings.backend", old.settings.get("backend"))
    records: list[Record] = []
    units: dict[tuple[str, ...], int] = {}
    for run in old.runs:
        if len(run.items) != len(run.answers) or not run.items:
            raise InvalidInput("results.runs", run.items, "give an answer for each item")
        unit = units.setdefault(run.items, len(units))
        records += [
            Record(
                run.method, item, 0, answer.tokens, batch=len(run.items), unit=unit,
                wall_seconds=run.seconds / len(run.items), right=answer.right, text=answer.text,
                counts=Counts(answer.forwards, answer.rows, deciding=answer.deciding),
            )
            for item, answer in zip(run.items, run.answers)
        ]  # fmt: skip
    return Results(
        created=old.created, commit=old.commit, model=old.model, machine=old.machine,
        settings={"suite": "parallel", **old.settings, "weights": old.weights},
        items=tuple(
            ItemInfo(item.id, item.id, item.task, 0, item.canvas, item.prompt, item.answer)
            for item in old.items
        ),
        engines=tuple(
            EngineInfo(
                method, "paradecode", backend, method, versions=old.versions,
                status="failed" if method in old.failed else "ok",
                reason=str(old.failed.get(method, "")),
            )
            for method in old.methods
        ),
        records=tuple(records),
    )  # fmt: skip


@dataclass(frozen=True)
class OldPhase:
    """One endpoint under one load (``clients``, or a ``rate``) in one round."""

    endpoint: str
    load: Mapping[str, Any]
    round: int
    seconds: float
    client_seconds: float
    answers: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class OldLoad:
    """The file of a run on servers."""

    created: str
    machine: Machine
    settings: Mapping[str, Any]
    endpoints: tuple[Mapping[str, Any], ...]
    phases: tuple[OldPhase, ...]
    figures: Any = checked(anything, None)


def load_results(data: Mapping[str, Any]) -> Results:
    """A result of requests to servers; raises InvalidInput that names the field."""
    own = {name: value for name, value in data.items() if name != "schema"}
    old: OldLoad = build(OldLoad, own, "results")
    name = text(1 << 16)
    engines = [
        EngineInfo(
            name("results.endpoints.name", each.get("name")), "server",
            name("results.endpoints.model", each.get("model")), "plain", settings=each,
        )
        for each in old.endpoints
    ]  # fmt: skip
    records: list[Record] = []
    for phase in old.phases:
        clients, count = phase.load.get("clients"), max(1, len(phase.answers))
        offered = f"c={clients}"
        if clients is None:
            offered = f"{number()('results.phases.load.rate', phase.load.get('rate')):g}/s"
        for unit, answer in enumerate(phase.answers):
            seen = {key: value for key, value in answer.items() if key not in ("ask", "error")}
            seen |= {"load": offered, "client_seconds": phase.client_seconds / count}
            records.append(
                Record(
                    phase.endpoint, name("results.phases.ask", answer.get("ask")), phase.round,
                    error=name("results.phases.error", answer.get("error", "")), unit=unit,
                    wall_seconds=phase.seconds / count, streamed=build(StreamedAnswer, seen, "ask"),
                )
            )  # fmt: skip
    return Results(
        created=old.created, commit=str(old.settings.get("commit", "")), machine=old.machine,
        model=", ".join(dict.fromkeys(engine.weights for engine in engines)),
        settings={"suite": "load", **old.settings},
        items=tuple(ItemInfo(i, i, "", 0, 0) for i in dict.fromkeys(r.item for r in records)),
        engines=tuple(engines), records=tuple(records),
    )  # fmt: skip


OLD: dict[str, Callable[[Mapping[str, Any]], Results]] = {
    "paradecode-parallel/1": parallel_results,
    "paradecode-load/1": load_results,
}
"""Schema -> what reads it."""
