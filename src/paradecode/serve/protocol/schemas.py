"""JSON schemas as answers should follow them: an object has no properties but its own.

JSON Schema lets an object have any further property unless ``additionalProperties`` forbids it. A
model that is held to such a schema may write properties until its tokens run out, and no client
that sends the schema of a class expects one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

DATA = ("const", "enum", "default", "examples")
"""Keywords whose values are data, not schemas."""
NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose values map names to schemas."""
JOINED = ("allOf", "anyOf", "oneOf", "if", "then", "else", "dependentSchemas", "$ref", "not")
"""What stands beside ``properties`` and may name more of them."""
OPENING = ("additionalProperties", "unevaluatedProperties", "patternProperties")


def closed(schema: Any) -> Any:
    """The schema with ``additionalProperties: false`` wherever it names properties and leaves open
    whether there may be others. Parts that are joined to one object stay as they are: each alone
    would forbid what the others name."""
    return _closed(schema, False, frozenset(_joined(schema)))


def _closed(schema: Any, joined: bool, shared: frozenset[str], place: str = "#") -> Any:
    if isinstance(schema, list):
        return [_closed(entry, joined, shared) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    part = joined or _is_joined(schema)
    made = {}
    for key, value in schema.items():
        if key in DATA:
            made[key] = value
        elif key in NAMED and isinstance(value, dict):
            names = value.items()
            below = {name: f"{place}/{key}/{name}" for name in value}
            made[key] = {k: _closed(v, below[k] in shared, shared, below[k]) for k, v in names}
        else:
            made[key] = _closed(value, key in JOINED and part, shared)
    if "properties" in schema and not part and not any(key in schema for key in OPENING):
        made["additionalProperties"] = False
    return made


def _is_joined(schema: dict[str, Any]) -> bool:
    """Whether more than one part of the schema may name properties of the same object."""
    if "if" in schema or "not" in schema or "dependentSchemas" in schema:
        return True
    every = schema.get("allOf")
    own = "properties" in schema
    several = isinstance(every, list) and len(every) + own > 1
    return several or (own and any(key in schema for key in ("anyOf", "oneOf", "$ref")))


def _joined(schema: Any, joined: bool = False) -> Iterator[str]:
    """The references among the parts of joined objects."""
    if isinstance(schema, list):
        for entry in schema:
            yield from _joined(entry, joined)
    elif isinstance(schema, dict):
        part = joined or _is_joined(schema)
        if part and isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        for key, value in schema.items():
            if key not in DATA:
                yield from _joined(value, key in JOINED and part)
