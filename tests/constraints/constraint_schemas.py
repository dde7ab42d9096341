"""JSON schemas written for these tests, and a generator of random ones."""

from __future__ import annotations

import random
from typing import Any

Schema = dict[str, Any]

WORDS = (
    "id",
    "name",
    "kind",
    "note",
    "size",
    "tags",
    "when",
    "ratio",
    "owner",
    "open",
    "näme",
    "a b",
)

PERSON: Schema = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}

TREE: Schema = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer", "minimum": 0, "maximum": 9},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "next"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}


def random_schema(rng: random.Random, depth: int = 2) -> Schema:
    """Return a random schema whose documents are short, whatever a model writes."""
    leaves = [_string, _integer, _number, _enum, _const, _boolean, _pattern]
    inner = [_array, _object, _object, _any_of]
    return rng.choice(leaves if depth == 0 else leaves + 3 * inner)(rng, depth - 1)


def _string(rng: random.Random, depth: int) -> Schema:
    least = rng.randrange(4)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randrange(8)}


def _integer(rng: random.Random, depth: int) -> Schema:
    low = rng.randrange(-50, 50)
    bounds = {"minimum": low, "maximum": low + rng.randrange(200)}
    return {"type": "integer", **(bounds if rng.random() < 0.7 else {"multipleOf": 5, **bounds})}


def _number(rng: random.Random, depth: int) -> Schema:
    return {"type": "number", "minimum": rng.randrange(5), "maximum": 5 + rng.randrange(5)}


def _enum(rng: random.Random, depth: int) -> Schema:
    return {"enum": rng.sample([*WORDS, 1, 2.5, None, True, "ab", "abc"], rng.randrange(1, 5))}


def _const(rng: random.Random, depth: int) -> Schema:
    return {"const": rng.choice([*WORDS, 7, None, False])}


def _boolean(rng: random.Random, depth: int) -> Schema:
    return {"type": rng.choice(["boolean", "null"])}


def _pattern(rng: random.Random, depth: int) -> Schema:
    patterns = ["^[A-Z][a-z]{1,5}$", "^(ab|cd){1,3}$", "^[0-9]{3}-[0-9]{2}$", "^x?y{2,4}$"]
    if rng.random() < 0.3:
        return {"type": "string", "format": rng.choice(["uuid", "ipv4"])}
    return {"type": "string", "pattern": rng.choice(patterns)}


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randrange(3)
    most = least + rng.randrange(3)
    schema = {"type": "array", "minItems": least, "maxItems": most}
    if rng.random() < 0.2:
        return {
            **schema,
            "prefixItems": [random_schema(rng, depth), random_schema(rng, 0)],
            "items": random_schema(rng, 0),
        }
    return {**schema, "items": random_schema(rng, depth)}


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(WORDS, rng.randrange(1, 5))
    return {
        "type": "object",
        "properties": {name: random_schema(rng, depth) for name in names},
        "required": rng.sample(names, rng.randrange(len(names) + 1)),
        "additionalProperties": False,
    }


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [random_schema(rng, depth), random_schema(rng, 0)]}
