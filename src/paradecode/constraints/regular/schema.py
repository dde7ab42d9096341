"""Turns the regular part of JSON Schema into a regular expression over bytes.

Every text that the expression matches is valid, but not every valid document matches. Objects have
only their declared properties, in the schema's order, and there is no whitespace.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor
from typing import Any

from paradecode.constraints.limits import FIELD, refused
from paradecode.constraints.regular.automaton import MOST_STEPS, too_large
from paradecode.constraints.regular.expressions import (
    ASCII,
    EMPTY,
    MOST_REPEATS,
    Characters,
    Expression,
    Repeat,
    between,
    one_of,
    optional,
    parse,
    sequence,
    text,
)
from paradecode.core.checks import maybe, number, whole
from paradecode.core.errors import InvalidInput

NOTES = {"title", "description", "default", "examples", "deprecated", "$schema", "$id", "$comment",
         "$defs", "definitions", "additionalProperties", "x-guidance"}  # fmt: skip
"""Keywords that do not change the expression."""
BOUNDS: dict[str, Callable[[float], int]] = {
    "minimum": ceil,
    "exclusiveMinimum": lambda value: floor(value) + 1,
    "maximum": floor,
    "exclusiveMaximum": lambda value: ceil(value) - 1,
}
"""Keyword of a number -> the function that gives the smallest or largest allowed whole number."""
KEYWORDS = {
    "string": {"minLength", "maxLength", "pattern"},
    "integer": {*BOUNDS},
    "number": {*BOUNDS},
    "boolean": set[str](),
    "null": set[str](),
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "object": {"properties", "required"},
}
KINDS_OF: dict[type, str] = {
    str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null",
    list: "array", dict: "object",
}  # fmt: skip
CHARACTER = Characters(ASCII, others=True).expression(quoted=True)
DIGIT = Characters(frozenset(b"0123456789")).expression(quoted=False)
LARGEST = 10**15


def schema_expression(schema: object) -> Expression:
    """Return an expression that matches documents of a JSON schema.

    Raises:
        InvalidInput: if a keyword is not supported on a canvas, the schema is recursive, or its
            references make it too large.
    """
    return _SchemaReader(schema).read(schema, ())


class _SchemaReader:
    def __init__(self, root: object) -> None:
        self.root, self.count = root, 0

    def read(self, schema: object, inside: tuple[str, ...]) -> Expression:
        """Return the expression of a schema. ``inside`` are the references that led to it."""
        self.count += 1
        if self.count > MOST_STEPS:  # References may double; each schema needs a state.
            raise too_large()
        if not isinstance(schema, Mapping):
            raise refused(schema, "a schema that allows anything has no end: give a type")
        if "$ref" in schema:
            _only(schema, {"$ref"})
            return self._reference(schema["$ref"], inside)
        if "const" in schema or "enum" in schema:
            _only(schema, {"const", "enum", "type"})
            values = [schema["const"]] if "const" in schema else _list(schema, "enum")
            if "type" in schema or len(schema.keys() & {"const", "enum"}) > 1:
                values = [value for value in values if _meets(value, schema)]
            return one_of(map(_literal, values))
        if "anyOf" in schema:
            _only(schema, {"anyOf"})
            return one_of(self.read(each, inside) for each in _list(schema, "anyOf"))
        kinds = schema.get("type")
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if not isinstance(kinds, Sequence) or not all(kind in KEYWORDS for kind in kinds):
            raise refused(schema, f"give type as one or more of {', '.join(KEYWORDS)}")
        _only(schema, {"type"}.union(*(KEYWORDS[kind] for kind in kinds)))
        return one_of(self._typed(kind, schema, inside) for kind in kinds)

    def _reference(self, name: object, inside: tuple[str, ...]) -> Expression:
        if not isinstance(name, str) or not name.startswith("#/"):
            raise refused(name, "refer to a part of this schema: #/$defs/name")
        if name in inside:
            raise refused(name, "a canvas needs an end: do not let a schema contain itself")
        found: Any = self.root
        for part in name[2:].split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, Mapping) else None
        return self.read(found, (*inside, name))

    def _typed(self, kind: str, schema: Mapping[str, Any], inside: tuple[str, ...]) -> Expression:
        if kind == "string":
            return _string(schema)
        if kind in ("integer", "number"):
            return _number(kind, schema)
        if kind == "boolean":
            return one_of([text("true"), text("false")])
        if kind == "null":
            return text("null")
        return self._array(schema, inside) if kind == "array" else self._object(schema, inside)

    def _array(self, schema: Mapping[str, Any], inside: tuple[str, ...]) -> Expression:
        least, most = _bounds(schema, "minItems", "maxItems")
        first = _list(schema, "prefixItems") if "prefixItems" in schema else []
        if most is not None:
            first = first[:most]
        if len(first) > least:
            least = len(first)  # Shorter arrays are valid, but are not generated.
        items = [self.read(each, inside) for each in first]
        parts: list[Expression] = []
        for index, item in enumerate(items):
            parts += [text(","), item] if index else [item]
        least, most = least - len(first), None if most is None else most - len(first)
        if schema.get("items") is False or most == 0:
            if least > 0:
                raise refused(schema, "minItems asks for more than there may be")
            return sequence(text("["), *parts, text("]"))
        item = self.read(schema.get("items"), inside)
        if items:
            more: Expression = Repeat(sequence(text(","), item), least, most)
        else:
            others = Repeat(sequence(text(","), item), max(least - 1, 0), most and most - 1)
            more = sequence(item, others)
            more = more if least else optional(more)
        return sequence(text("["), *parts, more, text("]"))

    def _object(self, schema: Mapping[str, Any], inside: tuple[str, ...]) -> Expression:
        properties = schema.get("properties", {})
        required = schema.get("required", [])
        if not isinstance(properties, Mapping) or not isinstance(required, list):
            raise refused(schema, "properties is an object, required a list")
        if not set(map(str, required)) <= properties.keys():
            raise refused(required, "declare each required property")
        entries = [
            (sequence(_literal(str(name)), text(":"), self.read(each, inside)), name in required)
            for name, each in properties.items()
        ]
        # A comma precedes each property after the first one that is written.
        rests: list[Expression] = [EMPTY]
        for entry, needed in reversed(entries):
            later = sequence(text(","), entry)
            rests.append(sequence(later if needed else optional(later), rests[-1]))
        rests.reverse()
        starts: list[Expression] = []
        for index, (entry, needed) in enumerate(entries):
            starts.append(sequence(entry, rests[index + 1]))
            if needed:
                break
        else:
            starts.append(EMPTY)
        return sequence(text("{"), one_of(starts), text("}"))


def _string(schema: Mapping[str, Any]) -> Expression:
    if "pattern" in schema:
        _only(schema, {"type", "pattern"})
        if not isinstance(schema["pattern"], str):
            raise refused(schema["pattern"], "give the pattern as text")
        return sequence(text('"'), parse(schema["pattern"], quoted=True), text('"'))
    least, most = _bounds(schema, "minLength", "maxLength")
    return sequence(text('"'), Repeat(CHARACTER, least, most), text('"'))


def _number(kind: str, schema: Mapping[str, Any]) -> Expression:
    limits = {name: schema[name] for name in BOUNDS if name in schema}
    for name, value in limits.items():
        number(-LARGEST, LARGEST)(f"{FIELD}.{name}", value)
    edges = {name: BOUNDS[name](value) for name, value in limits.items()}
    low = max([-LARGEST, *(value for name, value in edges.items() if name.endswith("inimum"))])
    high = min([LARGEST, *(value for name, value in edges.items() if name.endswith("aximum"))])
    if low > high:
        raise refused(dict(schema), "no whole number is within the bounds")
    if kind == "number" and not limits:
        fraction = sequence(text("."), Repeat(DIGIT, 1, 6))
        return sequence(between(low, high), optional(fraction))
    return between(low, high)


def _meets(value: object, schema: Mapping[str, Any]) -> bool:
    """Return whether a value of ``enum`` or ``const`` also satisfies ``type`` and ``enum``."""
    kinds = schema.get("type", list(KEYWORDS))
    kinds = [kinds] if isinstance(kinds, str) else kinds
    kind = KINDS_OF.get(type(value), "")
    fits = kind in kinds or (kind == "integer" and "number" in kinds)
    same = [_literal(value) == _literal(other) for other in schema.get("enum", [value])]
    return fits and any(same)


def _literal(value: object) -> Expression:
    return text(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _bounds(schema: Mapping[str, Any], low: str, high: str) -> tuple[int, int | None]:
    count = whole(0, MOST_REPEATS)
    least = count(f"{FIELD}.{low}", schema.get(low, 0))
    most = maybe(count)(f"{FIELD}.{high}", schema.get(high))
    if most is not None and most < least:
        raise refused(most, f"give {high} of at least {low}")
    return least, most


def _list(schema: Mapping[str, Any], name: str) -> list[Any]:
    value = schema[name]
    if not isinstance(value, list) or not value:
        raise refused(value, f"give {name} as a list of at least one")
    return value


def _only(schema: Mapping[str, Any], known: set[str]) -> None:
    for name in schema:
        if name not in known and name not in NOTES:
            fix = "a canvas supports types, enum, const, anyOf, $ref and simple bounds"
            raise InvalidInput(f"{FIELD}.{name}", schema[name], f"leave it out: {fix}")
