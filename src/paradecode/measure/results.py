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

from paradecode.core.errors import InvalidInput
from paradecode.measure.machine import Machine
from paradecode.measure.validation import check_names, fields_of, read_json

SCHEMA = "paradecode-bench/2"
READABLE = ("paradecode-bench/1", SCHEMA)
"""Version 1 is version 2 without batches, counts, guarantees and checked answers."""


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
        guarantee: ``exact``, ``distribution`` or ``lossy`` for a decoder of this package; empty
            where nothing is promised.
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
    guarantee: str = ""


@dataclass(frozen=True)
class Counts:
    """What one generation took, as this package's engine counts it.

    Attributes:
        forwards, rows: of the target; a prompt's chunks are one forward.
        draft_forwards, draft_rows: of draft models, and of some layers of the target that drafted.
        drafts, drafted, accepted: target forwards with a draft, draft tokens scored, and kept.
        accepted_per_position: how often the draft token at depth 1, 2, ... was kept.
        target, draft, verify, sample, other: decode seconds in target forwards; in draft models
            and the drafter's own code; in the rule that accepts; in argmax, top-k and sampling
            over the vocabulary; and in everything else. Requests of a batch share its forwards.
    """

    forwards: int
    rows: int
    draft_forwards: int = 0
    draft_rows: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_per_position: tuple[int, ...] = ()
    target: float = 0.0
    draft: float = 0.0
    verify: float = 0.0
    sample: float = 0.0
    other: float = 0.0


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
        batch: how many requests ran together; ``unit`` says which ones did (their number).
        wall_seconds: of the whole batch, over the number of its requests; 0 where unknown.
        right: whether the answer is right; None where it cannot be checked.
        counts: None for engines that do not tell.
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
    batch: int = 1
    unit: int = 0
    wall_seconds: float = 0.0
    right: bool | None = None
    counts: Counts | None = None


OPTIONAL = {"batch": 1, "unit": 0, "wall_seconds": 0.0, "right": None, "counts": None}
"""Fields of a record that are left out of the file where they say nothing."""


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
        entry = record_to_json(record)
        del entry["token_ids"]
        entry["output"] = outputs.setdefault(key, len(outputs))
        records.append(entry)
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


def record_to_json(record: Record) -> dict[str, Any]:
    """The fields that say something, times in microseconds' precision."""
    entry = {k: v for k, v in asdict(record).items() if k not in OPTIONAL or v != OPTIONAL[k]}
    return {key: _rounded(value) for key, value in entry.items()}


def record_from_json(where: str, entry: Any) -> Record:
    """The inverse; raises InvalidInput that names the field."""
    own = fields_of(where, entry, Record)
    if own.get("counts") is not None:
        counts = fields_of(f"{where}.counts", own["counts"], Counts)
        own["counts"] = Counts(**counts)
    return Record(**own)


def read_results(path: Path) -> Results:
    """Read what ``write_results`` wrote.

    Raises:
        InvalidInput: naming what is wrong with the file.
    """
    return results_from_json(path, read_json(path))


def results_from_json(path: Path, data: Mapping[str, Any]) -> Results:
    """The results in a JSON object; ``path`` is for errors.

    Raises:
        InvalidInput: naming the field that is wrong.
    """
    if data.get("schema") not in READABLE:
        raise InvalidInput("schema", data.get("schema"), f"this version reads {SCHEMA}")
    lists: dict[str, list[Any]] = {}
    for name in ("items", "engines", "outputs", "records"):
        found = data.get(name)
        if not isinstance(found, list):
            raise InvalidInput(f"{path.name} {name}", found, "give a list")
        lists[name] = found
    items = tuple(
        ItemInfo(**fields_of(f"items[{n}]", entry, ItemInfo))
        for n, entry in enumerate(lists["items"])
    )
    engines = tuple(
        EngineInfo(**fields_of(f"engines[{n}]", entry, EngineInfo))
        for n, entry in enumerate(lists["engines"])
    )
    outputs = [fields_of(f"outputs[{n}]", e, OutputEntry) for n, e in enumerate(lists["outputs"])]
    records = []
    for number, entry in enumerate(lists["records"]):
        where = f"records[{number}]"
        own = dict(entry) if isinstance(entry, dict) else {}
        index = own.pop("output", None)
        if not isinstance(index, int) or not 0 <= index < len(outputs):
            raise InvalidInput(f"{where}.output", index, f"name one of {len(outputs)} outputs")
        own["token_ids"] = outputs[index]["token_ids"]
        records.append(record_from_json(where, own))
    check_names("items", [item.id for item in items], [record.item for record in records])
    check_names("engines", [e.name for e in engines], [record.engine for record in records])
    head = fields_of("results", {k: data[k] for k in _HEAD if k in data}, Head)
    machine = fields_of("machine", head.pop("machine"), Machine)
    return Results(
        **head, machine=Machine(**machine), items=items, engines=engines, records=tuple(records),
        scores={
            (entry["item"], entry["token_ids"]): _score(f"outputs[{n}].score", entry)
            for n, entry in enumerate(outputs) if entry.get("score") is not None
        },
    )  # fmt: skip


@dataclass(frozen=True)
class Head:
    """What a file says once."""

    created: str
    commit: str
    model: str
    machine: Mapping[str, Any]
    settings: Mapping[str, Any]


_HEAD = ("created", "commit", "model", "machine", "settings")


@dataclass(frozen=True)
class OutputEntry:
    """An output in the file, with the oracle's summed likelihood and number of agreements."""

    item: str
    token_ids: tuple[int, ...]
    score: tuple[float, ...] | None = None


def _score(where: str, entry: Mapping[str, Any]) -> Score:
    if len(entry["score"]) != 2:
        raise InvalidInput(where, entry["score"], "give a likelihood and a count")
    return Score(entry["score"][0], int(entry["score"][1]), len(entry["token_ids"]))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(entry) for key, entry in value.items()}
    return round(value, 6) if isinstance(value, float) else value


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
