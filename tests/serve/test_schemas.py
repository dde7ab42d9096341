"""Objects are closed only if that forbids nothing that their schema names."""

from __future__ import annotations

from typing import Any

import pytest

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("pydantic")

from paradecode.serve.errors import ApiError
from paradecode.serve.protocol.schemas import check_strict, closed, enforceable, moved

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


KIND_A = {"type": "object", "properties": {"k": {"const": "a"}}, "required": ["k"]}
KIND_B = {"type": "object", "properties": {"k": {"enum": ["b", "c"]}}, "required": ["k"]}


@pytest.mark.parametrize(
    ("schema", "dropped", "values"),
    [
        ({"type": "array", "uniqueItems": True}, ["uniqueItems"], [[1, 2]]),
        ({"properties": {"a": {"not": TEXT}}}, ["properties/a/not"], [{"a": 1}]),
        ({"properties": {"not": TEXT}}, [], [{"not": "a"}]),
        ({"if": A, "then": B, "else": A}, ["if", "then", "else"], [BOTH]),
        ({"type": "array", "contains": TEXT}, ["contains"], [["a"]]),
        ({**A, "unevaluatedProperties": False}, [], [{"a": "1"}]),
        ({**A, "allOf": [B], "unevaluatedProperties": False}, ["unevaluatedProperties"], [BOTH]),
        ({"type": "string", "pattern": "^(?!b)a"}, ["pattern"], ["a"]),
        ({"type": "string", "pattern": r"(?<!b)a|(.)\1"}, ["pattern"], ["a"]),
        ({"type": "string", "pattern": r"^(?:a|\d)$"}, [], ["a"]),
        ({"pattern": r"^([a-z]{0,61}\.)+[a-z]{1,62}$", "maxLength": 253}, ["maxLength"], ["a.b"]),
        ({"pattern": r"^(\d{3}\.)+[a-z]{1,62}$", "maxLength": 253}, [], ["012.b"]),
        ({"propertyNames": TEXT}, [], [BOTH]),
        ({"propertyNames": {"maxLength": 1}}, ["propertyNames"], [BOTH]),
        ({"patternProperties": {"^(?=a)": TEXT, "^b": TEXT}}, ["patternProperties/^(?=a)"],
         [{"a": "1", "b": "1"}]),
        ({"multipleOf": 0.01}, [], [1.25]), ({"multipleOf": 1e-12}, ["multipleOf"], [1]),
        ({"multipleOf": 86400}, ["multipleOf"], [86400]), ({"multipleOf": 60}, [], [120]),
        ({"oneOf": [TEXT, {"type": "integer"}]}, [], ["a", 1]),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, ["oneOf"], [1.5]),
        ({"oneOf": [A, B]}, ["oneOf"], []), ({"oneOf": [KIND_A, KIND_B]}, [], [{"k": "b"}]),
        ({"oneOf": [{"$ref": "#/$defs/A"}, KIND_B], "$defs": {"A": KIND_A}}, [], [{"k": "a"}]),
        ({"oneOf": [{"const": 1}, {"enum": [2, 3]}, {"const": "a"}]}, [], [1, 3, "a"]),
        ({"oneOf": [{"$ref": "#"}, TEXT]}, ["oneOf"], []),
        ({"oneOf": [TEXT, {"type": "null"}], "anyOf": [TEXT]}, [], ["a"]),
        ({"type": "any"}, ["type"], []), ({"type": ["string", "file"]}, ["type"], []),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, ["properties/a/$ref"], []),
        ({"$ref": "https://example.org/b"}, ["$ref"], []),
        ({"const": {"not": 1}, "default": {"if": 1}}, [], [{"not": 1}]),
    ],
)  # fmt: skip
def test_what_cannot_be_enforced_is_dropped_and_named(
    schema: Any, dropped: list[str], values: list[Any]
) -> None:
    made, told = enforceable(schema)
    assert told == dropped
    for value in values:  # What the schema allows stays allowed.
        jsonschema.validate(value, schema)
        jsonschema.validate(value, made)
    assert enforceable(made) == (made, [])
    if dropped:
        with pytest.raises(ApiError, match="cannot be enforced") as error:
            check_strict("tools[1].function.parameters", schema)
        assert error.value.param == "tools[1].function.parameters"
    else:
        check_strict("a", schema)


def test_an_address_of_its_own_does_not_move() -> None:
    """References work in a schema with its own ``$id``, which Go's and TypeScript's tools write."""
    schema = {
        "$id": "https://example.org/a",
        "properties": {"a": {"$ref": "#/$defs/T"}, "b": {"$ref": "https://example.org/a#/$defs/T"}},
        "$defs": {"T": TEXT},
    }
    whole = {"$ref": "#/$defs/tool", "$defs": {"tool": moved(schema, "#/$defs/tool")}}
    jsonschema.validate(BOTH, whole)
    for name in BOTH:
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({name: 1}, whole)
