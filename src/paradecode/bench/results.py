"""The schema of a result: what was run, on what, every single measurement, and its JSON.

Outputs are stored once (most engines give the same tokens in every round) and records point at
them. Anything that can be recomputed from the records is derived in ``summary``, not stored here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from paradecode.bench.machine import Machine
from paradecode.core.errors import InvalidInput

SCHEMA = "paradecode-bench/1"


@dataclass(frozen=True)
class EngineInfo:
    """One engine with one set of weights in one mode.

    Attributes:
        name: unique, e.g. ``llama-cpp/q4_1+lookup``.
        peer: the project.
        weights: storage format of the weights it ran.
        mode: ``plain`` or the name of its speculation.
        reference: name of the same engine's plain mode; None for a plain mode.
        versions: package -> version.
        settings: what it was opened with.
        status: ``ok``, ``skipped`` (not installed or not loaded) or ``failed`` (while running).
        reason: why it is not ``ok``.
        load_seconds, peak_bytes: of its process.
    """

    name: str
    peer: str
    weights: str
    mode: str
    reference: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    status: str = "ok"
    reason: str = ""
    load_seconds: float | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True)
class Record:
    """One generation.

    Attributes:
        engine, item, round: what, on which input, which repetition.
        token_ids: the output up to and including the first stop token.
        first_tokens: how many of them were there when ``prefill_seconds`` had passed.
        prefill_seconds: from the request to the first tokens.
        decode_seconds: from then to the end.
        other_load: cores that other processes kept busy meanwhile; None where unknown.
        error: why there is no output.
    """

    engine: str
    item: str
    round: int
    token_ids: tuple[int, ...] = ()
    first_tokens: int = 1
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    other_load: float | None = None
    error: str = ""


@dataclass(frozen=True)
class ItemInfo:
    """What a record's ``item`` was; ``prompt`` joins the turns of one conversation."""

    id: str
    prompt: str
    group: str
    prompt_tokens: int
    max_tokens: int


@dataclass(frozen=True)
class Score:
    """An output under the oracle: summed negative log-likelihood, argmax agreements, tokens."""

    nll: float
    agreed: int
    tokens: int


@dataclass(frozen=True)
class Results:
    """A whole run; ``scores`` maps (item, output) to what the oracle says of it."""

    created: str
    commit: str
    model: str
    machine: Machine
    settings: Mapping[str, Any]
    items: tuple[ItemInfo, ...]
    engines: tuple[EngineInfo, ...]
    records: tuple[Record, ...]
    scores: Mapping[tuple[str, tuple[int, ...]], Score] = field(default_factory=dict)


def trim(
    token_ids: Sequence[int], stop_ids: Iterable[int], max_tokens: int, stopped: bool
) -> tuple[int, ...]:
    """What counts of an output: up to and including the first stop token, at most ``max_tokens``.

    Args:
        stopped: the engine says that it met a stop token; some leave it out of the output, and it
            is then put back, because a forward was spent on it.
    """
    stops = frozenset(stop_ids)
    kept: list[int] = []
    for token in token_ids[:max_tokens]:
        kept.append(token)
        if token in stops:
            return tuple(kept)
    if stopped and stops and len(kept) < max_tokens:
        kept.append(max(stops))
    return tuple(kept)


def write_results(results: Results, path: Path, aggregates: Any = None) -> None:
    """Write JSON: one line a record, so that versions of the file can be compared."""
    outputs: dict[tuple[str, tuple[int, ...]], int] = {}
    records = []
    for record in results.records:
        key = (record.item, record.token_ids)
        entry = asdict(record)
        del entry["token_ids"]
        entry["output"] = outputs.setdefault(key, len(outputs))
        records.append({k: round(v, 6) if isinstance(v, float) else v for k, v in entry.items()})
    listed = []
    for key in outputs:
        score = results.scores.get(key)
        own = [round(score.nll, 4), score.agreed] if score else None
        listed.append({"item": key[0], "token_ids": key[1], "score": own})
    head = {
        "schema": SCHEMA,
        **{k: getattr(results, k) for k in ("created", "commit", "model")},
        "machine": asdict(results.machine),
        "settings": dict(results.settings),
    }
    lists = {
        "engines": [asdict(engine) for engine in results.engines],
        "items": [asdict(item) for item in results.items],
        "outputs": listed,
        "records": records,
    }
    with path.open("w", encoding="utf-8") as file:
        file.write(_dump(head)[:-1])
        if aggregates is not None:
            file.write(f',\n"aggregates": {_dump(aggregates)}')
        for name, entries in lists.items():
            file.write(f',\n"{name}": [\n' + ",\n".join(map(_dump, entries)) + "\n]")
        file.write("\n}\n")


def read_results(path: Path) -> Results:
    """Read what ``write_results`` wrote.

    Raises:
        InvalidInput: if the file is not a result of this schema.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
        if data["schema"] != SCHEMA:
            raise InvalidInput("schema", data["schema"], f"this version reads {SCHEMA}")
        return _from_json(data)
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(
            "results", str(path), f"give a JSON file of the benchmark ({error})"
        ) from None


def _from_json(data: Mapping[str, Any]) -> Results:
    outputs = [(entry["item"], tuple(entry["token_ids"])) for entry in data["outputs"]]
    scores = {
        key: Score(entry["score"][0], entry["score"][1], len(key[1]))
        for key, entry in zip(outputs, data["outputs"])
        if entry["score"] is not None
    }
    records = []
    for entry in data["records"]:
        own = dict(entry)
        records.append(Record(token_ids=outputs[own.pop("output")][1], **own))
    machine = dict(data["machine"])
    machine["isa"] = tuple(machine["isa"])
    return Results(
        created=data["created"],
        commit=data["commit"],
        model=data["model"],
        machine=Machine(**machine),
        settings=data["settings"],
        items=tuple(ItemInfo(**entry) for entry in data["items"]),
        engines=tuple(EngineInfo(**entry) for entry in data["engines"]),
        records=tuple(records),
        scores=scores,
    )


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
