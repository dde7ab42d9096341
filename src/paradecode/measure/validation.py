"""Results come from files that anyone may have written: every field is checked and named."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from paradecode.core.errors import InvalidInput

MOST_BYTES = 1 << 30


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        InvalidInput: it cannot be read, or holds something else.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise InvalidInput("results", str(path), f"give a file below {MOST_BYTES >> 20} MiB")
        data = json.loads(path.read_text("utf-8"))
    except InvalidInput:
        raise
    except (OSError, ValueError, RecursionError) as error:
        fix = f"give a JSON file of the benchmark ({error})"
        raise InvalidInput("results", str(path), fix) from None
    if not isinstance(data, dict):
        raise InvalidInput("results", str(path), "give a JSON file of the benchmark, an object")
    return data


def fields_of(where: str, entry: Any, kind: type) -> dict[str, Any]:
    """Keyword arguments of the dataclass ``kind`` from a JSON object; lists become tuples.

    Raises:
        InvalidInput: naming a field that is unknown, missing, or of the wrong type; numbers are
            finite and not negative.
    """
    if not isinstance(entry, Mapping):
        raise InvalidInput(where, entry, "give an object")
    known = {field.name: field for field in fields(kind)}
    for name in entry:
        if name not in known:
            raise InvalidInput(f"{where}.{name}", entry[name], f"use one of {', '.join(known)}")
    found = {}
    for name, field in known.items():
        if name in entry:
            found[name] = _checked(f"{where}.{name}", entry[name], str(field.type))
        elif field.default is MISSING and field.default_factory is MISSING:
            raise InvalidInput(f"{where}.{name}", None, "it is missing")
    return found


def check_names(what: str, known: Sequence[str], used: Sequence[str]) -> None:
    """Raise InvalidInput unless the names are different and those that are used are known."""
    if len(set(known)) < len(known):
        twice = next(name for name in known if known.count(name) > 1)
        raise InvalidInput(what, twice, "it is there twice")
    strange = set(used) - set(known)
    if strange:
        raise InvalidInput("records", min(strange), f"it is not among the {what}")


def _checked(where: str, value: Any, kind: str) -> Any:
    """``value`` if it is of ``kind``, the annotation of a field."""
    kinds = [part.strip() for part in kind.split(" | ")]
    if value is None and "None" in kinds:
        return None
    expected = kinds[0]
    if expected.startswith("tuple["):
        inner = expected.removeprefix("tuple[").partition(",")[0]
        if not isinstance(value, (list, tuple)):
            raise InvalidInput(where, value, "give a list")
        return tuple(_checked(f"{where}[{n}]", entry, inner) for n, entry in enumerate(value))
    if expected == "bool":
        right = isinstance(value, bool)
    elif expected == "int":
        right = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    elif expected == "float":
        right = isinstance(value, (int, float)) and not isinstance(value, bool)
        right = right and math.isfinite(value) and value >= 0
    elif expected == "str":
        right = isinstance(value, str)
    else:  # Mappings, and dataclasses that their caller reads.
        right = isinstance(value, Mapping)
    if not right:
        raise InvalidInput(where, value, f"give {_WORDS.get(expected, 'an object')}")
    return value


_WORDS = {
    "bool": "true or false", "int": "a whole number, not negative",
    "float": "a finite number, not negative", "str": "a text",
}  # fmt: skip
