"""Rewrite JSON schemas of answers: drop rules that cannot be enforced, and close objects.

A closed object has only the properties that its schema names. JSON Schema allows further ones
unless ``additionalProperties`` forbids them. With an open object, a model may write properties
until its tokens run out, and clients that send a class as schema expect none of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any
from urllib.parse import unquote

from paradecode.constraints.json_schema import Place, Schema, plain, rebuilt
from paradecode.constraints.limits import MAX_TEXT
from paradecode.serve.errors import wrong

NAMERS = ("properties", "anyOf", "oneOf", "$ref")
"""Keywords that may name properties of an object. Each schema of ``allOf`` may name some, too."""
PARTING = ("if", "not", "dependentSchemas", "dependencies")
"""Keywords that name properties of an object only under a condition."""
JOINED = ("allOf", "anyOf", "oneOf", "then", "else", *PARTING)
"""Keywords whose schemas describe the same object as the schema around them."""
UNENFORCED = (
    "contains", "minContains", "maxContains", "not", "if", "then", "else", "dependentRequired",
    "dependentSchemas", "dependencies", "propertyNames", "unevaluatedProperties",
    "unevaluatedItems", "uniqueItems", "$dynamicRef", "$dynamicAnchor", "$recursiveRef",
    "$recursiveAnchor",
)  # fmt: skip
"""Keywords that the parsers here, which read from left to right, cannot enforce."""
TYPES = {"string", "number", "boolean", "null", "array", "object"}
LOOKING = re.compile(r"\(\?<?[=!]|\\[1-9]|\\k<")
"""Matches regular expressions that no automaton can follow: lookaround, references to groups."""
COUNTED, SHORT = re.compile(r"\{(?:\d{1,4},)?\d{2,4}\}"), 64
"""Matches counted repetitions, two of which make a pattern too large for a longer ``maxLength``."""
DIGITS, STEPS = 15, 1000
"""Bounds on ``multipleOf``: the most decimal places, and the most units of the last place."""
MOST_KINDS = 32
"""The most schemas of ``oneOf``, and the most values of each, that are compared with each other."""
OPENING = ("additionalProperties", "unevaluatedProperties", "patternProperties")


def enforceable(schema: Schema) -> tuple[Schema, list[str]]:
    """Return the schema without rules that cannot be enforced, and the place of each such rule.

    An unknown type and a reference that leads nowhere are such rules, too.

    Every document that the original schema allows is allowed by the result. ``oneOf`` becomes
    ``anyOf``; its place is reported if a document may match two of its schemas. A schema that is
    too long is returned as it is, and a worker refuses it.
    """
    dropped: list[str] = []
    if len(json.dumps(schema, ensure_ascii=False)) > MAX_TEXT:  # The worker counts so, too.
        return schema, dropped

    def visit(part: Schema, place: Place) -> Schema:
        made = rebuilt(part, lambda at, inner: visit(inner, (*place, *at)))
        lost = [key for key in UNENFORCED if key in made]
        if made.get("unevaluatedProperties") is False and not _is_joined(made):
            made["additionalProperties"] = made.get("additionalProperties", False)
            lost.remove("unevaluatedProperties")
            del made["unevaluatedProperties"]
        if made.get("propertyNames") in (True, {}, {"type": "string"}):  # It says nothing.
            lost.remove("propertyNames")
            del made["propertyNames"]
        if isinstance(pattern := made.get("pattern"), str):
            long = made.get("maxLength")
            if LOOKING.search(pattern):
                lost.append("pattern")
            elif isinstance(long, int) and long > SHORT and len(COUNTED.findall(pattern)) > 1:
                lost.append("maxLength")
        if not _is_short(made.get("multipleOf", 1)):
            lost.append("multipleOf")
        if not _are_types(made.get("type", [])):
            lost.append("type")
        if not _leads_somewhere(schema, made):
            lost.append("$ref")
        if isinstance(named := made.get("patternProperties"), dict):
            bad = [pattern for pattern in named if LOOKING.search(pattern)]
            made["patternProperties"] = {p: named[p] for p in named if p not in bad}
            dropped.extend(_spelled((*place, "patternProperties", one)) for one in bad)
        for key in lost:
            del made[key]
            dropped.append(_spelled((*place, key)))
        if isinstance(kinds := made.get("oneOf"), list):
            if not _are_apart(schema, kinds):
                dropped.append(_spelled((*place, "oneOf")))
            del made["oneOf"]
            if "anyOf" in made:
                made["allOf"] = [*made.get("allOf", ()), {"anyOf": kinds}]
            else:
                made["anyOf"] = kinds
        return made

    return visit(plain(schema), ()), dropped


def _spelled(place: Place) -> str:
    return "/".join(step.replace("~", "~0").replace("/", "~1") for step in place)


def _is_short(step: Any) -> bool:
    """Return whether the parser can count in steps of this size.

    The parser multiplies a step by ten until it is whole, and needs a state for each remainder.
    """
    if not isinstance(step, (int, float)):
        return True
    for _ in range(DIGITS):
        if step == int(step):
            return abs(step) <= STEPS
        step *= 10
    return False


def _are_types(kinds: Any) -> bool:
    return all(
        isinstance(one, str) and one in (*TYPES, "integer")
        for one in (kinds if isinstance(kinds, list) else [kinds])
    )


def _leads_somewhere(root: Schema, schema: Schema) -> bool:
    """Return whether a schema has no reference, or one to a place in the whole schema."""
    reference, own = schema.get("$ref", "#"), root.get("$id")
    if not isinstance(reference, str):
        return False
    if (target := _target(schema)) is not None:
        return _at(root, target) is not None
    return reference.startswith("#") or (isinstance(own, str) and reference.startswith(own))


def check_strict(where: str, schema: Schema) -> None:
    """Raise ApiError 400 if a rule of the schema cannot be enforced."""
    if dropped := enforceable(schema)[1]:
        raise wrong(where, f"{dropped[0]} cannot be enforced: leave it out, or set strict to false")


def _are_apart(root: Schema, kinds: list[Any]) -> bool:
    """Return whether types and fixed values keep a document from matching two of ``kinds``."""
    told = [_marks(root, kind) for kind in kinds[:MOST_KINDS]]
    return len(kinds) <= MOST_KINDS and all(
        not one["type"] & other["type"]
        or any(not one[key] & other[key] for key in one.keys() & other.keys() - {"type"})
        for one, other in combinations(told, 2)
    )


def _marks(root: Schema, kind: Any) -> dict[str, set[Any]]:
    """Return the types that a schema allows, and the allowed values of required properties.

    Properties with many allowed values are left out.
    """
    if isinstance(kind, dict) and (target := _target(kind)) is not None:
        kind = _at(root, target)
    if not isinstance(kind, dict) or "$ref" in kind:
        return {"type": TYPES}
    said = kind.get("type", [])
    said = [said] if isinstance(said, str) else said
    types = {"number" if one == "integer" else one for one in said}
    found = {"type": types or TYPES}
    if (own := _values(kind)) is not None:
        found[""] = own
    required, named = kind.get("required"), kind.get("properties")
    if types == {"object"} and isinstance(required, list) and isinstance(named, dict):
        few = {name: _values(named.get(name)) for name in required if isinstance(name, str)}
        found |= {f".{name}": values for name, values in few.items() if values is not None}
    return found


def _values(schema: Any) -> set[Any] | None:
    """Return the values that ``const`` or ``enum`` allow, or None if they are many or complex."""
    if not isinstance(schema, dict):
        return None
    found = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(found, list) or len(found) > MOST_KINDS:
        return None
    plain_ones = all(isinstance(value, (str, int, float, type(None))) for value in found)
    return set(found) if plain_ones else None


def closed(schema: Any) -> Any:
    """Return the schema with ``additionalProperties: false`` for objects with named properties.

    A schema that already decides about other properties stays as it is. So do schemas that describe
    one object together, because each would forbid the properties that the others name.
    """
    joined = _joined(schema)

    def close(part: Schema, place: Place) -> Schema:
        made = rebuilt(part, lambda at, inner: close(inner, (*place, *at)))
        opened = place in joined or any(key in part for key in OPENING)
        if "properties" in part and not opened:
            made["additionalProperties"] = False
        return made

    return close(schema, ()) if isinstance(schema, dict) else schema


def moved(schema: Schema, pointer: str) -> Schema:
    """Return the schema as it has to be written at ``pointer`` inside another schema.

    Its references are adapted, and its own ``$id`` is removed.
    """
    own = schema.get("$id")
    made = _moved(schema, pointer, own.rstrip("#") if isinstance(own, str) else "")
    made.pop("$id", None)
    return made


def _moved(schema: Schema, pointer: str, own: str) -> Schema:
    made = rebuilt(schema, lambda _, inner: _moved(inner, pointer, own))
    reference = schema.get("$ref")
    if isinstance(reference, str):
        reference = reference.removeprefix(own) or "#"
    if isinstance(reference, str) and (reference == "#" or reference.startswith("#/")):
        made["$ref"] = pointer + reference[1:]
    return made


def _joined(root: Any) -> set[Place]:
    """Return the places of schemas that describe the same object together with other schemas."""
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
    """Return whether several parts of the schema may name properties of the same object."""
    every = schema.get("allOf")
    namers = len(every) if isinstance(every, list) else 0
    namers += sum(key in schema for key in NAMERS)
    return namers > 1 or any(key in schema for key in PARTING)


def _schemas(schema: Schema, place: Place) -> Iterator[tuple[Place, Schema]]:
    """Yield the schema and all schemas inside it, with their places."""
    yield place, schema
    for at, inner in _below(schema):
        yield from _schemas(inner, (*place, *at))


def _below(schema: Schema) -> list[tuple[Place, Schema]]:
    """Return the schemas directly inside a schema, with their places."""
    found: list[tuple[Place, Schema]] = []
    rebuilt(schema, lambda at, inner: found.append((at, inner)))
    return found


def _target(schema: Schema) -> Place | None:
    """Return the place in the whole schema that a schema's reference names, or None."""
    reference = schema.get("$ref")
    if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
        return None
    steps = unquote(reference).split("/")[1:]
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in steps)


def _at(root: Any, place: Place) -> Any:
    """Return the value at a place, or None if nothing is there."""
    for step in place:
        if isinstance(root, list):
            numbers = step.isascii() and step.isdecimal() and len(step) < 8
            root = root[int(step)] if numbers and int(step) < len(root) else None
        else:
            root = root.get(step) if isinstance(root, dict) else None
    return root
