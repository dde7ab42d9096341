"""Libraries' schemas mean what the standard says, and no number can have endless digits."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

llguidance = pytest.importorskip("llguidance")

from paradecode.constraints.grammar import compile_grammar, grammar_of
from paradecode.constraints.json_schema import REAL, WHOLE, bounded, plain
from paradecode.core.errors import InvalidInput

BYTES = llguidance.LLTokenizer("byte")
DRAFT_7 = "http://json-schema.org/draft-07/schema#"
LONG = 100
"""The most bytes of a document in which every possible place holds digits."""


def matcher(schema: Any, kind: str = "json_schema") -> Any:
    return compile_grammar(grammar_of(kind, schema), BYTES, schema)


def takes(schema: Any, text: str) -> bool:
    at = matcher(schema)
    return all(at.consume_token(byte) for byte in text.encode()) and at.is_accepting()


def spelled(number: float) -> str:
    """Return a small number as the parser writes it.

    Versions of the parser differ in when they use an exponent.
    """
    for text in (f"{number}", f"{number:.20f}".rstrip("0")):
        if takes({"const": number}, text):
            return text
    raise AssertionError(f"the parser takes no spelling of {number}")


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        ({"type": "string", "format": "binary"}, ['"a b"'], ["1"]),
        ({"type": "string", "format": "idn-email", "examples": "x"}, ['"a"'], ["1"]),
        ({"type": "integer", "format": "int32"}, ["5", "-5"], ["5.5", '"5"']),
        ({"type": "string", "contentEncoding": "base64", "x-a": 1}, ['"!"'], ["1"]),
        ({"$schema": "https://example.org/none", "type": "null"}, ["null"], ["1"]),
        ({"$schema": DRAFT_7, "type": "array", "items": [{"type": "null"}, {"type": "integer"}],
          "additionalItems": False}, ["[null,1]"], ["[null,1,1]", "[1]"]),
        ({"type": "array", "items": {"const": 1}, "uniqueItems": False}, ["[1,1]"], ["[2]"]),
        ({"type": "integer", "minimum": 5, "exclusiveMinimum": True, "maximum": 9,
          "exclusiveMaximum": False}, ["6", "9"], ["5", "10"]),
        ({"type": "string", "minLength": 1.0, "maxLength": 2.0}, ['"a"', '"ab"'], ['""', '"abc"']),
        ({"type": "string", "nullable": True, "enum": ["a"]}, ['"a"', "null"], ['"b"']),
        ({"$ref": "#/$defs/a", "nullable": True, "$defs": {"a": {"type": "integer"}}},
         ["null", "5"], ['"a"']),
        ({"properties": {"format": {"format": "path"}, "nullable": {"type": "null"}},
          "type": "object", "required": ["nullable"]}, ['{"nullable":null}'], ["{}"]),
        ({"type": "object", "properties": {"a": True}, "required": ["a"]},
         ['{"a":[1,{"b":2.5}]}', '{"a":null,"c":1}'], ["{}", "[]"]),
        ({"type": ["integer", "null"]}, ["5", "null"], ["5.5"]),
        ({"type": "number", "enum": [1e-12, 1e30]}, [spelled(1e-12)], ["5"]),
        ({"type": "number", "minimum": 1e-11, "maximum": 1e-10}, ["0.00000000005"], ["1"]),
        ({"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}, ["5", f"{WHOLE}"], ["x"]),
        ({"type": "number", "maximum": 1e300, "minimum": 0}, ["0.5", f"{REAL}"], ["-1"]),
        ({"oneOf": [{"type": "number"}, {"type": "string"}]}, ["1.5", '"a"'], ["null"]),
        ({"allOf": [{"type": "number"}, {"minimum": 3}]}, ["3.5"], ["2.5"]),
        ({"anyOf": [{}, {"type": "null"}]}, ["[1]", "null"], ["x"]),
        ({}, ['{"a":[true,"b",1.5]}'], ["x"]),
    ],
)  # fmt: skip
def test_forms(schema: Any, right: list[str], wrong: list[str]) -> None:
    assert [takes(schema, text) for text in right] == [True] * len(right)
    assert [takes(schema, text) for text in wrong] == [False] * len(wrong)


@pytest.mark.parametrize(
    ("schema", "begun"),
    [
        ({"type": "number"}, "-"), ({"type": "number"}, "0."), ({"type": "integer"}, ""),
        ({"type": "number", "minimum": 0}, ""), ({"type": "number", "maximum": 5.5}, "1."),
        ({"type": ["number", "string"], "description": "a"}, ""), ({}, ""),
        ({"type": "array"}, "["), ({"type": "object"}, '{"a":[{"b":0.'),
        ({"type": "array", "items": {"oneOf": [{"type": "number"}, {"type": "null"}]}}, "["),
        ({"type": "string", "format": "date-time"}, '"2020-01-01T00:00:00.'),
        ({"type": "string", "format": "time", "title": "a"}, '"00:00:00.'),
        ({"type": "string", "format": "duration", "minLength": 2}, '"P'),
        ({"type": "object", "additionalProperties": {"type": "number"}}, '{"a":0.'),
        ({"patternProperties": {"^a": {"type": "integer"}}, "type": "object"}, '{"a":'),
    ],
)  # fmt: skip
def test_digits_end(schema: Any, begun: str) -> None:
    """Numbers end, even if a model writes digits wherever it may, as small models do."""
    at = matcher(schema)
    assert all(at.consume_token(byte) for byte in begun.encode())
    written = 0
    while at.consume_token(ord("1")):
        written += 1
        assert written < LONG


def test_any_object_has_no_endless_number() -> None:
    at = matcher(None, "json_object")
    for byte in b'{"a":0.' + b"1" * 9:
        assert at.consume_token(byte)
    assert not at.consume_token(ord("1"))


def test_what_is_bounded_is_of_the_schema() -> None:
    """Bounds only exclude documents: the schema allows all that the bounded schema allows."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "number"}, "b": {"items": {}}, "c": {"type": "integer"}},
        "additionalProperties": {"type": "string", "format": "date-time"},
        "$defs": {"own": {"type": "null"}},
    }
    made = bounded(plain(schema))
    assert made["$defs"]["own"] == {"type": "null"}
    for value in ({"a": 1.5, "b": [{"c": 1}], "c": 7, "d": "2020-01-01T00:00:00.5Z"}, {"a": 1e16},
                  {"a": "x"}, {"c": 10**19}, {"c": 1.5}, {"d": 1}):  # fmt: skip
        if jsonschema.Draft202012Validator(made).is_valid(value):
            jsonschema.validate(value, schema)
    assert not jsonschema.Draft202012Validator(made).is_valid({"a": 1e16})


def test_the_schema_that_was_given_stays() -> None:
    schema = {
        "type": "array",
        "items": [{"format": "a"}],
        "nullable": True,
        "exclusiveMinimum": True,
    }
    text = json.dumps(schema)
    bounded(plain(schema))
    assert json.dumps(schema) == text


def test_what_cannot_be_enforced_is_still_an_error() -> None:
    for schema in ({"type": "array", "uniqueItems": True}, {"not": {"type": "null"}}):
        with pytest.raises(InvalidInput, match="Unimplemented"):
            matcher(schema)
