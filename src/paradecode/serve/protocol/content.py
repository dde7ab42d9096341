"""Read the content of a message: a text, or a list of parts that are texts."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from paradecode.serve.protocol.base import Said

MAX_CHARACTERS = 1 << 21
MAX_PARTS = 1 << 10
TEXT_PARTS = {
    "text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal",
    "search_result": "content", "document": "source",
}  # fmt: skip
"""Types of parts that are texts -> the field that holds the text."""
THOUGHTS = ("thinking", "redacted_thinking", "reasoning", "reasoning_text", "summary_text")
"""Types of parts that hold a model's reasoning. These parts are left out."""

_PART = {
    "type": "object",
    "properties": {"type": {"const": "text"}, "text": {"type": "string"}},
    "required": ["type", "text"],
}


def text_of(value: Any, shown: bool = False) -> str:
    """Return the text of a content. The texts of its parts are joined by newlines, as in vLLM.

    Args:
        shown: whether a part that is no text becomes a word that names it; otherwise it is an
            error.
    """
    if isinstance(value, str):
        return _bounded(value)
    if not isinstance(value, list) or len(value) > MAX_PARTS:
        raise _wrong(f"give a text, or a list of at most {MAX_PARTS} parts")
    ignored: dict[str, None] = {}
    texts = [_part(part, shown, ignored) for part in value]
    text = Said(_bounded("\n".join(text for text in texts if text is not None)))
    text.ignored = tuple(ignored)
    return text if ignored else str(text)


def _part(part: Any, shown: bool, ignored: dict[str, None]) -> str | None:
    """Return the text of a part, or None if it has no effect. Add ignored names to ``ignored``."""
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(kind, str):
        raise _wrong("give parts such as {'type': 'text', 'text': '...'}")
    field = TEXT_PARTS.get(kind, "")
    if kind == "document":
        source = part.get("source")
        of_text = isinstance(source, dict) and source.get("type") in ("text", "content")
        found = source.get("data", source.get("content")) if of_text else None
    else:
        found = part.get(field)
    if isinstance(found, list) and field in ("content", "source"):
        found = text_of(found, shown)
    if isinstance(found, str):
        unused = part.keys() - {"type", field}
        ignored |= {f".{name}": None for name in sorted(unused) if part[name] not in (None, [], {})}
        return found
    if field and kind != "document":
        raise _wrong("the text of a part must be a string")
    if kind not in THOUGHTS and not shown:
        raise _wrong(f"parts of type {kind[:40]!r} are not supported; the models here read text")
    ignored[f"[{kind[:40]}]"] = None
    return f"[{kind[:40]} left out]" if shown and kind not in THOUGHTS else None


def _bounded(text: str) -> str:
    if len(text) > MAX_CHARACTERS:
        raise _wrong(f"give at most {MAX_CHARACTERS} characters")
    return text


def _wrong(message: str) -> PydanticCustomError:
    return PydanticCustomError("content", "{said}", {"said": message})


_SCHEMA = WithJsonSchema(
    {
        "anyOf": [
            {"type": "string", "maxLength": MAX_CHARACTERS},
            {"type": "array", "items": _PART, "maxItems": MAX_PARTS},
        ]
    }
)


def _by_role(value: Any, info: ValidationInfo) -> str:
    return text_of(value, shown=info.data.get("role") in ("tool", "function"))


Content = Annotated[str, PlainValidator(_by_role), _SCHEMA]
Shown = Annotated[str, PlainValidator(partial(text_of, shown=True)), _SCHEMA]
"""Content from a tool. For an image the model reads only that there was an image."""
