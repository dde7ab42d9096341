"""The schema of a result: every answer of every method, on what it was measured, and its JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.measure.machine import Machine

SCHEMA = "paradecode-parallel/1"


@dataclass(frozen=True)
class Item:
    """One instance of a task as the model gets it.

    Attributes:
        id: task, seed and number.
        task: name of the task.
        prompt, answer: the instance's.
        canvas: positions of the output, masks at first.
    """

    id: str
    task: str
    prompt: str
    answer: str
    canvas: int


@dataclass(frozen=True)
class Answer:
    """What a method made of an item.

    Attributes:
        tokens: the output, up to and including the first end of text.
        text: the same, as the checker read it.
        right: the checker's word.
        forwards, rows: of this request: target forwards, and rows that were computed in them.
        deciding: forwards that decided a token of the output. The others decided only what lies
            behind the end of text, which is easy.
    """

    tokens: tuple[int, ...]
    text: str
    right: bool
    forwards: int
    rows: int
    deciding: int


@dataclass(frozen=True)
class Run:
    """One batch by one method: the items' ids, their answers, and wall seconds for all of them."""

    method: str
    items: tuple[str, ...]
    seconds: float
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Results:
    """A whole run.

    Attributes:
        created, commit: when, and of which code.
        versions: package -> version.
        model, weights: its name, and a digest of its files.
        settings: backend, threads, batch, seed and the like.
        methods: specs in the order in which they were asked for.
        failed: spec -> why it could not be measured.
    """

    created: str
    commit: str
    versions: Mapping[str, str]
    model: str
    weights: str
    machine: Machine
    settings: Mapping[str, Any]
    methods: tuple[str, ...]
    items: tuple[Item, ...]
    runs: tuple[Run, ...]
    failed: Mapping[str, str] = field(default_factory=dict)


def run_from_json(entry: Mapping[str, Any]) -> Run:
    """The inverse of ``asdict``, checked.

    Raises:
        KeyError, TypeError, ValueError: the entry is something else.
    """
    answers = tuple(
        Answer(
            tuple(int(token) for token in each["tokens"]), str(each["text"]), bool(each["right"]),
            int(each["forwards"]), int(each["rows"]), int(each["deciding"]),
        )
        for each in entry["answers"]
    )  # fmt: skip
    items = tuple(str(item) for item in entry["items"])
    if len(items) != len(answers) or not items:
        raise ValueError("a run has an answer for each item")
    return Run(str(entry["method"]), items, float(entry["seconds"]), answers)


def write_results(results: Results, path: Path, aggregates: Mapping[str, Any]) -> None:
    """Write JSON: one line an item and a run, so that versions of the file can be compared.

    Args:
        aggregates: the figures of the tables, for programs; they can be computed again.
    """
    names = ("created", "commit", "versions", "model", "weights", "settings", "methods", "failed")
    head = {name: getattr(results, name) for name in names}
    rows = {
        "items": [asdict(item) for item in results.items],
        "runs": [{**asdict(run), "seconds": round(run.seconds, 6)} for run in results.runs],
    }
    with path.open("w", encoding="utf-8") as file:
        file.write(_dump({"schema": SCHEMA, **head, "machine": asdict(results.machine)})[:-1])
        file.write(f',\n"aggregates": {_dump(aggregates)}')
        for name, entries in rows.items():
            file.write(f',\n"{name}": [\n' + ",\n".join(map(_dump, entries)) + "\n]")
        file.write("\n}\n")


def read_results(path: Path) -> Results:
    """Read what ``write_results`` wrote.

    Raises:
        InvalidInput: the file is not a result of this schema.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["schema"] != SCHEMA:
            raise InvalidInput("schema", data["schema"], f"this version reads {SCHEMA}")
        return _from_json(data)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, InvalidInput):
            raise
        fix = f"give a JSON file of `paradecode bench` ({type(error).__name__}: {error})"
        raise InvalidInput("results", str(path), fix) from None


def _from_json(data: Mapping[str, Any]) -> Results:
    items = tuple(Item(**entry) for entry in data["items"])
    runs = tuple(run_from_json(entry) for entry in data["runs"])
    unknown = {item for run in runs for item in run.items} - {item.id for item in items}
    if unknown:
        raise ValueError(f"no item {min(unknown)}")
    machine = dict(data["machine"])
    machine["isa"] = tuple(machine["isa"])
    return Results(
        created=str(data["created"]),
        commit=str(data["commit"]),
        versions=dict(data["versions"]),
        model=str(data["model"]),
        weights=str(data["weights"]),
        settings=dict(data["settings"]),
        failed=dict(data["failed"]),
        machine=Machine(**machine),
        methods=tuple(str(method) for method in data["methods"]),
        items=items,
        runs=runs,
    )


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
