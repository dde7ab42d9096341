"""Rewrites JSON schemas, as people and libraries write them, to the form that llguidance parses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DATA = ("const", "enum", "default", "examples")
"""Keywords whose values are data, not schemas."""
NAMED = (
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies",
)  # fmt: skip
"""Keywords whose values map names to schemas."""
COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "minContains", "maxContains",
)  # fmt: skip
FORMATS = (
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
)  # fmt: skip
"""Formats that the parser knows. Any other format is only an annotation, as the standard says."""
PLACED = ("$id", "$defs", "definitions")
"""Keywords whose position in the schema matters, because references find them there."""
WORDS = ("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly")

WHOLE, REAL, STEP = 10**18 - 1, 10**15, 1e-9
"""Bounds for numbers: the largest whole number, the largest other number, and the smallest step.

They apply if a schema sets no bound of its own, because small models write digits until their
tokens run out.
"""

LENGTHS = {
    "date-time": r"^[^.]*(\.\d{1,9}(\D.*)?)?$",
    "time": r"^[^.]*(\.\d{1,9}(\D.*)?)?$",
    "duration": r"^(\D|\d{1,4}\D)*$",
}
"""Format -> a pattern that bounds digits: 9 in a fraction of a second, 4 in a duration's part."""

Schema = dict[str, Any]
"""A schema that is an object. In JSON Schema, ``true`` and ``false`` are schemas as well."""

Place = tuple[str, ...]
"""The path to a schema inside another schema: keywords, names and indices."""


def rebuilt(schema: Schema, change: Callable[[Place, Schema], Any]) -> Schema:
    """Return a copy of a schema, with ``change`` applied to each schema directly inside it."""

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


def plain(schema: Schema) -> Schema:
    """Return the schema in the current form of the standard.

    Annotations that look like rules are removed, and keywords of older drafts and of OpenAPI are
    translated.
    """
    made = rebuilt(schema, lambda _, inner: plain(inner))
    made.pop("$schema", None)  # Tools of one request may name different drafts.
    if made.get("format", FORMATS[0]) not in FORMATS:
        del made["format"]
    if made.get("uniqueItems") is False:
        del made["uniqueItems"]
    if isinstance(made.get("required"), bool):
        del made["required"]
    for key in COUNTS:
        if isinstance(count := made.get(key), float) and count.is_integer():
            made[key] = int(count)
    for key in ("exclusiveMinimum", "exclusiveMaximum"):
        if isinstance(made.get(key), bool):
            bound = made.pop(key[9:].lower(), None)
            own = key if made.pop(key) else key[9:].lower()
            made |= {} if bound is None else {own: bound}
    if isinstance(made.get("items"), list):
        made["prefixItems"] = made.pop("items")
        if "additionalItems" in made:
            made["items"] = made.pop("additionalItems")
    if made.pop("nullable", False) is True:
        made = _or_null(made)
    return made


def _or_null(schema: Schema) -> Schema:
    kind = schema.get("type")
    if not isinstance(kind, str):
        outside = {key: value for key, value in schema.items() if key in PLACED}
        inside = {key: value for key, value in schema.items() if key not in PLACED}
        return {**outside, "anyOf": [inside, {"type": "null"}]}
    made = {**schema, "type": [kind, "null"]}
    if isinstance(chosen := made.get("enum"), list) and None not in chosen:
        made["enum"] = [*chosen, None]
    return made


def bounded(schema: Schema) -> Schema:
    """Return the schema with a bound on the digits of each number, date-time, time and duration.

    Frequent types without a bound of their own are defined once below ``$defs``, because the parser
    compiles each copy again.
    """
    number = {"type": "number", "minimum": -REAL, "maximum": REAL, "multipleOf": STEP}
    anything: Schema = {"$ref": "#/$defs/:any"}
    shared: Schema = {
        ":number": number,
        ":integer": {"type": "integer", "minimum": -WHOLE, "maximum": WHOLE},
        ":any": {"anyOf": [
            {"type": ["string", "boolean", "null"]},
            {"$ref": "#/$defs/:number"},
            {"type": "array", "items": anything},
            {"type": "object", "additionalProperties": anything},
        ]},
        **{f":{name}": {"type": "string", "format": name, "pattern": length}
           for name, length in LENGTHS.items()},
    }  # fmt: skip

    def visit(part: Schema, parent: str) -> Schema:
        made = rebuilt(part, lambda at, inner: visit(inner, at[0]))
        kinds = made.get("type", ())
        kinds = [kinds] if isinstance(kinds, str) else kinds
        alone = {key: value for key, value in made.items() if key not in WORDS}
        own, format = alone.keys() - {"type", "format"}, made.get("format")
        if "enum" in made or "const" in made or not isinstance(kinds, (list, tuple)):
            return made
        if parent != "oneOf" and not own:  # In oneOf the parser must see the types.
            if alone.keys() == {"type"} and kinds in (["number"], ["integer"]):
                return {"$ref": f"#/$defs/:{kinds[0]}"}
            if kinds == ["string"] and format in LENGTHS:
                return {"$ref": f"#/$defs/:{format}"}
            if not alone and parent not in ("allOf", "then", "else", "not"):
                return anything
        if "number" in kinds or "integer" in kinds:
            made |= _bounds(made, "number" in kinds)
        if "string" in kinds and format in LENGTHS and "pattern" not in made:
            made["pattern"] = LENGTHS[format]
        if parent == "allOf" or made.keys() & {"allOf", "anyOf", "oneOf", "$ref"}:
            return made  # A part's bound would hold for properties of other parts.
        for kind, key in (("array", "items"), ("object", "additionalProperties")):
            if kind in kinds and made.get(key, True) is True:
                made[key] = anything
        if isinstance(named := made.get("properties"), dict):
            made["properties"] = {
                name: anything if inner is True else inner for name, inner in named.items()
            }
        return made

    made = visit(schema, "")
    own = made.get("$defs")
    return {**made, "$defs": {**(own if isinstance(own, dict) else {}), **shared}}


def _bounds(schema: Schema, real: bool) -> Schema:
    """Return bounds for a schema's numbers, where the schema has none or larger ones."""
    most = REAL if real else WHOLE
    found: dict[str, float] = {}
    for sign, key, open_key in ((-1, "minimum", "exclusiveMinimum"),
                                (1, "maximum", "exclusiveMaximum")):  # fmt: skip
        given = [schema[name] for name in (key, open_key) if name in schema]
        if any(not isinstance(bound, (int, float)) or sign * bound < -most for bound in given):
            return {}
        if not given or (key in schema and abs(schema[key]) > most):
            found[key] = sign * most
    bounds = [schema[key] for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")
              if key in schema]  # fmt: skip
    if real and "multipleOf" not in schema and all(_is_coarse(bound) for bound in bounds):
        found["multipleOf"] = STEP
    return found


def _is_coarse(bound: float) -> bool:
    """Return whether a bound is a multiple of ten steps, so that other numbers lie near it."""
    steps = bound / (10 * STEP)
    return abs(steps - round(steps)) < 1e-3
