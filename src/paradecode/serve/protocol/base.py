"""The common part of every request body: strict types, no unknown fields, errors that name the
field."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails

from paradecode.serve.errors import ApiError, wrong
from paradecode.serve.validation import MOST, path_of, spelled

UNSUPPORTED = {
    "chat_template": "the template comes with the model",
    "functions": "use tools",
    "function_call": "use tool_choice",
    "suffix": "the models here only continue a text",
    "audio": "the models here read and write text",
    "modalities": "the models here read and write text",
    "prompt_embeds": "give text or token ids",
    "previous_response_id": "nothing is stored: send the whole conversation",
    "conversation": "nothing is stored: send the whole conversation",
    "background": "responses are not kept: use stream",
}
"""Fields of other servers that are refused -> the reason, or what to use instead."""


def _end_early(part: Any) -> None:
    if isinstance(part, dict):
        if part.get("type") == "list":
            part["fail_fast"] = True
        for inner in part.values():
            _end_early(inner)
    elif isinstance(part, (list, tuple)):
        for inner in part:
            _end_early(inner)


class Body(BaseModel):
    """A JSON object from a request. Only numbers count as numbers: no texts, no booleans, no
    NaN."""

    model_config = ConfigDict(
        strict=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True
    )

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Make the check of every list end at its first bad entry: a million errors help nobody."""
        schema = handler(source)
        _end_early(schema)
        return schema


AnyBody = TypeVar("AnyBody", bound=Body)


def validated(kind: type[AnyBody], value: Any) -> AnyBody:
    """The body as an object of its class.

    Raises:
        ApiError: 400, naming one field that is wrong.
    """
    if not isinstance(value, Mapping):
        raise ApiError(400, "the body must be a JSON object")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        if error.error_count() > MOST:  # Pydantic would write them all down first.
            message = f"the body has {error.error_count()} errors: more than are told one by one"
            raise ApiError(400, message) from None
        found = [(path_of(value, detail), detail) for detail in error.errors(include_url=False)]
    # Of a choice of types each one complains; who got deepest was probably meant.
    path, detail = max(found, key=lambda entry: len(entry[0]))
    there = dict.fromkeys(other["msg"] for where, other in found if where == path)
    raise _refusal(kind, path, detail, list(there))


def known_only(kind: type[Body], value: Any, ignore_unknown: bool) -> Any:
    """The body without fields that have no effect: unsupported fields that are null and, if
    unknown fields are ignored, fields that do not exist."""
    if not isinstance(value, Mapping):
        return value
    known = {field.alias or name for name, field in kind.model_fields.items()}
    return {
        name: found
        for name, found in value.items()
        if name in known or (found is not None if name in UNSUPPORTED else not ignore_unknown)
    }


def _refusal(
    kind: type[Body], path: list[str | int], detail: ErrorDetails, said: list[str]
) -> ApiError:
    param = spelled(path)[:200]
    if detail["type"] == "missing":
        return wrong(param, "it is required", "missing")
    if detail["type"] != "extra_forbidden":
        told = [text.removeprefix("Value error, ") for text in said[:3]]
        return wrong(param, ", or ".join(text[:1].lower() + text[1:] for text in told))
    name = str(path[-1]) if path else ""
    if name in UNSUPPORTED:
        fix = f"it is not supported; {UNSUPPORTED[name]}"
    else:
        names = [known for known in _names(kind) if known != name]  # It exists, elsewhere.
        near = difflib.get_close_matches(name[:100], names, 1)
        fix = "there is no such field" + (f"; the nearest is {near[0]}" if near else "")
    return wrong(param, fix, "unknown_field")


@lru_cache
def _names(kind: type[Body]) -> tuple[str, ...]:
    """Every field name of a body and of the objects inside of it, its own first."""
    schema = kind.model_json_schema()
    return tuple(dict.fromkeys(_properties([schema, *schema.get("$defs", {}).values()])))


def _properties(schemas: list[dict[str, Any]]) -> Iterator[str]:
    for schema in schemas:
        yield from schema.get("properties", {})
