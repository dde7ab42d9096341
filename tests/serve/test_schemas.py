"""Objects are closed where that forbids nothing that their schema names."""

from __future__ import annotations

from typing import Any

import pytest

jsonschema = pytest.importorskip("jsonschema")
pytest.importorskip("pydantic")

from paradecode.serve.protocol.schemas import closed  # noqa: E402

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
        ({"if": A, "then": B}, BOTH),
        ({"const": {"properties": {}}}, {"properties": {}}),
        ({"properties": {"default": A, "enum": A}}, {"default": {"a": "1"}, "enum": {}}),
    ],
)
def test_what_is_named_or_opened_stays(schema: Any, value: Any) -> None:
    jsonschema.validate(value, schema)
    jsonschema.validate(value, closed(schema))


def test_the_schema_itself_is_not_changed() -> None:
    schema = {"properties": {"x": dict(A)}}
    closed(schema)
    assert schema == {"properties": {"x": A}}
