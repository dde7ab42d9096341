"""Reads and writes results as JSON files. Every field is checked, and an error names a wrong one.

Each output is stored once, and records point at it by its index. A record leaves out fields that
have their defaults. In a file the records are rows below one list of columns. A column such as
``counts.rows`` is a field inside a field, and null stands for a field that the record leaves out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from paradecode.core.checks import build, json_object
from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.machine import Machine
from paradecode_lab.measure.results import (
    EngineInfo,
    ItemInfo,
    OutputKey,
    Record,
    Results,
    Score,
)

SCHEMA = "paradecode-bench/5"
READABLE = tuple(f"paradecode-bench/{version}" for version in (1, 2, 3, 4, 5))
"""Schemas of results that this version reads.

Version 1 has no batches, counts, guarantees and checked answers. Version 2 has no texts, questions
and deciding forwards, version 3 no requests to servers. Version 5 has columns and rows.
"""

MOST_BYTES = 1 << 30


@dataclass(frozen=True)
class OutputEntry:
    """An output in the file.

    Attributes:
        item: id of the input.
        token_ids: the output.
        score: the oracle's summed negative log-likelihood, and the number of tokens that are its
            own choice; None if the output was not scored.
    """

    item: str
    token_ids: tuple[int, ...]
    score: tuple[float, ...] | None = None


@dataclass(frozen=True)
class ResultsFile:
    """The JSON object of a result.

    Records hold the index of their output; unknown fields are ignored.
    """

    created: str
    commit: str
    model: str
    settings: Mapping[str, Any]
    machine: Machine
    engines: tuple[EngineInfo, ...]
    items: tuple[ItemInfo, ...]
    outputs: tuple[OutputEntry, ...]
    records: tuple[Mapping[str, Any], ...]


LISTS = ("engines", "items", "outputs", "records")


def write_results(results: Results, path: Path, aggregates: Any = None) -> None:
    """Write a result as JSON, with a line for each field and each record, which suits diffs.

    Args:
        aggregates: the figures of the tables, written for other programs.
    """
    head = results_to_json(results, aggregates)
    head["columns"], head["records"] = packed(head["records"])
    write_json(head, path)


def write_json(document: Any, path: Path) -> None:
    """Write JSON without spaces: a line for each field of an object and each entry of a list."""
    text = _lines(document)
    if isinstance(document, Mapping):
        fields = (f"{_dump(name)}:{_lines(value)}" for name, value in document.items())
        text = "{" + ",\n".join(fields) + "}"
    path.write_text(text + "\n", "utf-8")


def _lines(value: Any) -> str:
    is_long = isinstance(value, (list, tuple)) and any(isinstance(v, (dict, list)) for v in value)
    return "[\n" + ",\n".join(map(_dump, value)) + "\n]" if is_long else _dump(value)


def results_to_json(results: Results, aggregates: Any = None) -> dict[str, Any]:
    """Return the JSON object of a result, whose records are objects."""
    outputs: dict[OutputKey, int] = {}
    records = []
    for record in results.records:
        entry = record_to_json(record)
        if entry.pop("token_ids", None):
            entry["output"] = outputs.setdefault((record.item, record.token_ids), len(outputs))
        records.append(entry)
    listed = []
    for item, token_ids in outputs:
        score = results.scores.get((item, token_ids))
        own = [round(score.nll, 4), score.agreed] if score else None
        listed.append({"item": item, "token_ids": token_ids, "score": own})
    head: dict[str, Any] = {"schema": SCHEMA}
    head |= {name: getattr(results, name) for name in ("created", "commit", "model", "settings")}
    head["machine"] = asdict(results.machine)
    if aggregates is not None:
        head["aggregates"] = rounded(aggregates)
    lists = ([asdict(engine) for engine in results.engines], map(_brief, results.items))
    return {**head, **dict(zip(LISTS, (*map(list, lists), listed, records)))}


def packed(records: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Turn records into columns and rows. A row ends with the last field that its record has."""
    flat = [
        {
            name: value
            for field, own in record.items()
            for name, value in (
                {f"{field}.{inner}": part for inner, part in own.items()}
                if isinstance(own, dict) and own
                else {field: own}
            ).items()
        }
        for record in records
    ]
    columns = list(dict.fromkeys(name for entry in flat for name in entry))
    rows = []
    for entry in flat:
        last = max((columns.index(name) for name in entry), default=-1)
        rows.append([entry.get(name) for name in columns[: last + 1]])
    return columns, rows


def unpacked(columns: Sequence[str], rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Turn columns and rows into records.

    Raises:
        InvalidInput: a row is not a list, or is longer than the list of columns.
    """
    records = []
    for number, row in enumerate(rows):
        if not isinstance(row, list) or len(row) > len(columns):
            fix = f"give a list of at most {len(columns)} values"
            raise InvalidInput(f"records[{number}]", row, fix)
        record: dict[str, Any] = {}
        for name, value in zip(columns, row):
            field, _, inner = name.partition(".")
            if value is not None and inner:
                record.setdefault(field, {})[inner] = value
            elif value is not None:
                record[field] = value
        records.append(record)
    return records


def record_to_json(record: Record) -> dict[str, Any]:
    """Return a record's fields that differ from their defaults, with times to the microsecond."""
    return _brief(record)


def rounded(value: Any) -> Any:
    """Return a JSON value with every float rounded to six significant digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a result file, with records as objects.

    Raises:
        InvalidInput: the file cannot be read, or its columns and rows do not fit.
    """
    data = json_object(path, "results", MOST_BYTES)
    columns, records = data.get("columns"), data.get("records")
    if columns is not None and isinstance(records, list):
        if not isinstance(columns, list) or not all(isinstance(name, str) for name in columns):
            raise InvalidInput("columns", columns, "give a list of names")
        whole = {name.partition(".")[0] for name in columns if "." in name}
        if whole & set(columns) or len(set(columns)) < len(columns):
            raise InvalidInput("columns", columns, "name each field once, and no field of it too")
        data["records"] = unpacked(columns, records)
        del data["columns"]
    return data


def read_results(path: Path) -> Results:
    """Read a result of any version in ``READABLE``.

    Raises:
        InvalidInput: a field is wrong; the error names it.
    """
    return results_from_json(read_json(path))


def results_from_json(data: Mapping[str, Any]) -> Results:
    """Build the results from a JSON object.

    Raises:
        InvalidInput: a field is wrong; the error names it.
    """
    schema = data.get("schema")
    if schema not in READABLE:
        fix = f"this version reads {', '.join(READABLE)}: run the suite again"
        raise InvalidInput("schema", schema, fix)
    results = _results(data)
    items, engines = [item.id for item in results.items], [each.name for each in results.engines]
    _check_names("items", items, [record.item for record in results.records])
    _check_names("engines", engines, [record.engine for record in results.records])
    return results


def _results(data: Mapping[str, Any]) -> Results:
    names = [field.name for field in fields(ResultsFile)]
    file: ResultsFile = build(ResultsFile, {name: data.get(name) for name in names}, "results")
    return Results(
        created=file.created, commit=file.commit, model=file.model, machine=file.machine,
        settings=file.settings, items=file.items, engines=file.engines,
        records=tuple(
            _record(f"records[{n}]", dict(entry), file.outputs)
            for n, entry in enumerate(file.records)
        ),
        scores={
            (entry.item, entry.token_ids): _score(f"outputs[{n}].score", entry.score, entry)
            for n, entry in enumerate(file.outputs)
            if entry.score is not None
        },
    )  # fmt: skip


def _record(where: str, entry: dict[str, Any], outputs: Sequence[OutputEntry]) -> Record:
    if "output" in entry:
        index = entry.pop("output")
        if not isinstance(index, int) or not 0 <= index < len(outputs):
            raise InvalidInput(f"{where}.output", index, f"name one of {len(outputs)} outputs")
        entry["token_ids"] = outputs[index].token_ids
    record: Record = build(Record, entry, where)
    return record


def _score(where: str, found: Sequence[float], output: OutputEntry) -> Score:
    if len(found) != 2:
        raise InvalidInput(where, found, "give a likelihood and a count")
    return Score(found[0], int(found[1]), len(output.token_ids))


def _check_names(what: str, known: Sequence[str], used: Sequence[str]) -> None:
    """Check that all names differ and that every used name is known.

    Raises:
        InvalidInput: a name is there twice or is not known.
    """
    if len(set(known)) < len(known):
        twice = next(name for name in known if known.count(name) > 1)
        raise InvalidInput(what, twice, "it is there twice")
    strange = set(used) - set(known)
    if strange:
        raise InvalidInput("records", min(strange), f"it is not among the {what}")


def _brief(entry: Any) -> dict[str, Any]:
    """Return a dataclass's fields that differ from their defaults, times to the microsecond."""
    found = {}
    for field in fields(entry):
        value = getattr(entry, field.name)
        if value != field.default:
            value = round(value, 6) if isinstance(value, float) else value
            found[field.name] = _brief(value) if is_dataclass(value) else value
    return found


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
