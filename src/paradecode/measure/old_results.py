"""The schema that the parallel suite had of its own, as committed results still have it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paradecode.core.checks import build, text
from paradecode.core.errors import InvalidInput
from paradecode.measure.machine import Machine
from paradecode.measure.results import Counts, EngineInfo, ItemInfo, Record, Results

PARALLEL = "paradecode-parallel/1"


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
class OldResults:
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
    old: OldResults = build(OldResults, own, "results")
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
