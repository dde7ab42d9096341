"""Objects are closed where that forbids nothing that their schema names."""

from __future__ import annotations

from typing import Any

import pytest

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("pydantic")

from paradecode.serve.protocol.schemas import closed, moved

TEXT = {"type": "string"}
A = {"type": "object", "properties": {"a": TEXT}}
B = {"type": "object", "properties": {"b": TEXT}}
BOTH = {"a": "1", "b": "2"}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (A, BOTH),
        ({"type": "array", "items": A}, [BOTH]),
        ({"anyOf": [A, B]}, BOTH),
        ({"$ref": "#/$defs/A", "$defs": {"A": A}}, BOTH),
        ({"allOf": [{"$ref": "#/$defs/A"}], "$defs": {"A": A}}, BOTH),
        ({"properties": {"properties": A}}, {"properties": BOTH}),
        ({"properties": {"x": {"items": {"allOf": [A]}}}}, {"x": [BOTH]}),
        ({"properties": {"const": A, "enum": A}}, {"const": BOTH}),
        ({"$ref": "#/$defs/X", "$defs": {"X": {"$ref": "#/$defs/A"}, "A": A}}, BOTH),
    ],
)
def test_what_was_not_named_is_forbidden(schema: Any, value: Any) -> None:
    jsonschema.validate(value, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(value, closed(schema))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object"}, BOTH),
        (True, BOTH),
        ({**A, "additionalProperties": True}, BOTH),
        ({**A, "additionalProperties": TEXT}, BOTH),
        ({**A, "patternProperties": {"^b": TEXT}}, BOTH),
        ({**A, "unevaluatedProperties": TEXT}, BOTH),
        ({"allOf": [A, B]}, BOTH),
        ({**A, "allOf": [B]}, BOTH),
        ({**A, "anyOf": [B, TEXT]}, BOTH),
        ({**A, "$ref": "#/$defs/B", "$defs": {"B": B}}, BOTH),
        ({"allOf": [{"$ref": "#/$defs/A"}, B], "$defs": {"A": A}}, BOTH),
        ({"allOf": [{"anyOf": [{"$ref": "#/$defs/A"}]}, B], "$defs": {"A": A}}, BOTH),
        (
            {"allOf": [{"$ref": "#/$defs/X"}, B], "$defs": {"X": {"$ref": "#/$defs/A"}, "A": A}},
            BOTH,
        ),
        (
            {
                "allOf": [{"$ref": "#/$defs/X"}, B],
                "$defs": {"X": {"title": "X", "allOf": [{"$ref": "#/$defs/A"}]}, "A": A},
            },
            BOTH,
        ),
        ({"allOf": [{"$ref": "#/$defs/A~1b"}, B], "$defs": {"A/b": A}}, BOTH),
        ({"allOf": [{"$ref": "#/$defs/A%20~0b"}, B], "$defs": {"A ~b": A}}, BOTH),
        (
            {"allOf": [{"$ref": "#/properties/x/anyOf/0"}, B], "properties": {"x": {"anyOf": [A]}}},
            BOTH,
        ),
        (
            {"properties": {"default": {"allOf": [{"$ref": "#/$defs/A"}, B]}}, "$defs": {"A": A}},
            {"default": BOTH},
        ),
        ({"allOf": [A], "anyOf": [B]}, BOTH),
        ({**A, "dependentSchemas": {"a": B}}, BOTH),
        ({"if": A, "then": B}, BOTH),
        ({"const": {"properties": {}}}, {"properties": {}}),
        ({"properties": {"default": A, "enum": A}}, {"default": {"a": "1"}, "enum": {}}),
    ],
)
def test_what_is_named_or_opened_stays(schema: Any, value: Any) -> None:
    jsonschema.validate(value, schema)
    jsonschema.validate(value, closed(schema))


@pytest.mark.parametrize("reference", ["#", "#/$defs/X", "#/$defs/none", "#/anyOf/7", "#x", "y", 1])
def test_references_that_lead_nowhere_or_back(reference: Any) -> None:
    schema = {**A, "allOf": [{"$ref": reference}], "$defs": {"X": {"$ref": "#/$defs/X"}}}
    assert closed(schema) == schema


NAMES = ["default", "const", "enum", "examples", "$ref", "plain"]


@pytest.mark.parametrize("name", NAMES)
def test_references_follow_a_schema_that_moves(name: str) -> None:
    schema = {
        "properties": {name: {"$ref": "#/$defs/T"}},
        "$defs": {"T": TEXT},
        "default": {name: 1},
    }
    made = moved(schema, "#/$defs/tool")
    assert made["properties"] == {name: {"$ref": "#/$defs/tool/$defs/T"}}
    whole = {"$ref": "#/$defs/tool", "$defs": {"tool": made}}
    jsonschema.validate({name: "x"}, whole)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({name: 1}, whole)


def test_references_to_elsewhere_and_data_stay() -> None:
    data = {"$ref": "#/$defs/T"}
    schema = {"allOf": [{"$ref": "#"}, {"$ref": "other.json#/a"}], "const": data, "default": data}
    assert moved(schema, "#/x") == {**schema, "allOf": [{"$ref": "#/x"}, {"$ref": "other.json#/a"}]}


def test_the_schema_itself_is_not_changed() -> None:
    schema = {"properties": {"x": dict(A)}}
    closed(schema)
    assert schema == {"properties": {"x": A}}
