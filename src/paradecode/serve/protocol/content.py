"""The content of a message: a text, or a list of parts which all are text."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

MAX_CHARACTERS = 1 << 21
MAX_PARTS = 1 << 10
TEXT_PARTS = ("text", "input_text", "output_text", "refusal")

_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}


def _text(value: Any) -> str:
    """The text of a content. Newlines join its parts, as in vLLM."""
    if isinstance(value, str):
        return _bounded(value)
    if not isinstance(value, list) or not 0 < len(value) <= MAX_PARTS:
        raise _wrong(f"give a text, or a list of 1 to {MAX_PARTS} parts")
    return _bounded("\n".join(map(_part, value)))


def _part(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise _wrong("give parts such as {'type': 'text', 'text': '...'}")
    if kind not in TEXT_PARTS:
        raise _wrong(f"parts of type {kind[:40]!r} are not supported; the models here read text")
    text = part.get("refusal" if kind == "refusal" else "text")
    if not isinstance(text, str):
        raise _wrong("the text of a part must be a string")
    if not part.keys() <= {"type", "text", "refusal", "annotations", "logprobs", "cache_control"}:
        raise _wrong("a part has a type and a text, and nothing else")
    return text


def _bounded(text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise _wrong(f"give at most {MAX_CHARACTERS} characters")
    return text


def _wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError("content", "{said}", {"said": message})


Content = Annotated[
    str,
    PlainValidator(_text),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "maxLength": MAX_CHARACTERS},
                {"type": "array", "items": _PART, "minItems": 1, "maxItems": MAX_PARTS},
            ]
        }
    ),
]
