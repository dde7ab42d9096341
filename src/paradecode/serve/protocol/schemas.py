"""JSON schemas for answers: an object may have no properties but those that its schema names.

JSON Schema allows further properties unless ``additionalProperties`` forbids them. A model that is
held to such a schema may write properties until its tokens run out, and no client that sends the
schema of a class expects any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import unquote

DATA = ("const", "enum", "default", "examples")
"""Keywords whose values are data, not schemas."""
NAMED = (
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies",
)  # fmt: skip
"""Keywords whose values map names to schemas."""
NAMERS = ("properties", "anyOf", "oneOf", "$ref")
"""Keywords that may name properties of an object; each schema of ``allOf`` may as well."""
PARTING = ("if", "not", "dependentSchemas", "dependencies")
"""Keywords that name properties of an object only in some cases."""
JOINED = ("allOf", "anyOf", "oneOf", "then", "else", *PARTING)
"""Keywords whose schemas are about the same object as the schema around them."""
OPENING = ("additionalProperties", "unevaluatedProperties", "patternProperties")

Schema = dict[str, Any]
"""A schema that is an object; ``true`` and ``false`` are schemas as well, but need no change."""

Place = tuple[str, ...]
"""The path to a schema inside of another one: keywords, names and numbers."""


def closed(schema: Any) -> Any:
    """The schema with ``additionalProperties: false`` wherever it names properties and does not
    say whether there may be others. Parts that are joined to one object stay as they are,
    because each part alone would forbid what the others name."""
    joined = _joined(schema)

    def close(part: Schema, place: Place) -> Schema:
        made = _rebuilt(part, lambda at, inner: close(inner, (*place, *at)))
        opened = place in joined or any(key in part for key in OPENING)
        if "properties" in part and not opened:
            made["additionalProperties"] = False
        return made

    return close(schema, ()) if isinstance(schema, dict) else schema


def moved(schema: Schema, pointer: str) -> Schema:
    """The schema as it must be written at ``pointer`` of another one, with its references
    adapted."""
    made = _rebuilt(schema, lambda _, inner: moved(inner, pointer))
    reference = schema.get("$ref")
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        made["$ref"] = pointer + reference[1:]
    return made


def _joined(root: Any) -> set[Place]:
    """The places of schemas that are parts of an object whose properties several parts name."""
    if not isinstance(root, dict):
        return set()
    pending = [(place, part) for place, part in _schemas(root, ()) if _is_joined(part)]
    found: set[Place] = set()
    while pending:
        place, part = pending.pop()
        if place in found:
            continue
        found.add(place)
        pending += [((*place, *at), inner) for at, inner in _below(part) if at[0] in JOINED]
        target = _target(part)
        if target is not None and isinstance(meant := _at(root, target), dict):
            pending.append((target, meant))
    return found


def _is_joined(schema: Schema) -> bool:
    """Whether more than one part of the schema may name properties of the same object."""
    every = schema.get("allOf")
    namers = len(every) if isinstance(every, list) else 0
    namers += sum(key in schema for key in NAMERS)
    return namers > 1 or any(key in schema for key in PARTING)


def _schemas(schema: Schema, place: Place) -> Iterator[tuple[Place, Schema]]:
    """The schema and all schemas inside of it, with their places."""
    yield place, schema
    for at, inner in _below(schema):
        yield from _schemas(inner, (*place, *at))


def _below(schema: Schema) -> list[tuple[Place, Schema]]:
    """The schemas directly inside of a schema, with their places."""
    found: list[tuple[Place, Schema]] = []
    _rebuilt(schema, lambda at, inner: found.append((at, inner)))
    return found


def _rebuilt(schema: Schema, change: Callable[[Place, Schema], Any]) -> Schema:
    """A copy of a schema in which ``change`` was applied to all schemas directly inside of it."""

    def changed(value: Any, *at: str) -> Any:
        return change(at, value) if isinstance(value, dict) else value

    made: Schema = {}
    for key, value in schema.items():
        if key in DATA:
            made[key] = value
        elif key in NAMED and isinstance(value, dict):
            made[key] = {name: changed(inner, key, name) for name, inner in value.items()}
        elif isinstance(value, list):
            made[key] = [changed(inner, key, f"{at}") for at, inner in enumerate(value)]
        else:
            made[key] = changed(value, key)
    return made


def _target(schema: Schema) -> Place | None:
    """The place that a schema refers to, if it is one in the whole schema."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    steps = unquote(reference).split("/")[1:]
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)


def _at(root: Any, place: Place) -> Any:
    """The value at a place; None if there is none."""
    for step in place:
        if isinstance(root, list):
            numbers = step.isascii() and step.isdecimal() and len(step) < 8
            root = root[int(step)] if numbers and int(step) < len(root) else None
        else:
            root = root.get(step) if isinstance(root, dict) else None
    return root
