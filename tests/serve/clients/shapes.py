"""Every parameter and type of item that the openai and anthropic packages allow.

``shapes.py`` prints a request for each of them as a line of JSON. ``shapes.py names`` prints the
listing ``shapes.json``. The script runs in an environment that has the packages, which ``make
clients`` makes.
"""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin

from typing_extensions import get_type_hints, is_typeddict

SAMPLES: dict[Any, Any] = {str: "x", int: 1, float: 1, bool: True, object: {}, bytes: "x"}
NOTHING = type(None)
LISTED = 3
"""Number of levels in the listing."""
MOST = 5
"""The number of levels of objects that are entered.

Deeper ones are in items that the server does not read.
"""


def routes() -> dict[str, list[Any]]:
    """Return API -> the types of its requests' parameters, also of the anthropic package's beta."""
    from anthropic.types import message_create_params as messages
    from anthropic.types.beta import message_create_params as beta
    from openai.types import completion_create_params as completions
    from openai.types.chat import completion_create_params as chat
    from openai.types.responses import response_create_params as responses

    return {
        "chat/completions": [chat.CompletionCreateParamsNonStreaming],
        "completions": [completions.CompletionCreateParamsNonStreaming],
        "responses": [responses.ResponseCreateParamsNonStreaming],
        "messages": [
            messages.MessageCreateParamsNonStreaming, beta.MessageCreateParamsNonStreaming
        ],
    }  # fmt: skip


def bare(kind: Any) -> Any:
    """Return the type without its wrappers, such as ``Annotated``."""
    while get_origin(kind) in (typing.Annotated, typing.Required, typing.NotRequired) or (
        get_origin(kind) is not None and "Required" in str(get_origin(kind))
    ):
        kind = get_args(kind)[0]
    return kind


def choices(kind: Any) -> list[Any]:
    """Return the types that a union or a single type allows."""
    kind = bare(kind)
    if get_origin(kind) in (typing.Union, types.UnionType):
        return [one for part in get_args(kind) for one in choices(part)]
    return [] if kind is NOTHING else [kind]


def inner(kind: Any) -> tuple[Any, bool]:
    """Return the type of a list's entries, and whether the type is a list."""
    origin = get_origin(kind)
    listed = origin is not None and getattr(origin, "__name__", "") in (
        "list", "Iterable", "Sequence", "SequenceNotStr"
    )  # fmt: skip
    return (get_args(kind)[0], True) if listed else (kind, False)


def mark(kind: Any) -> str:
    """Return the word that names an object's type: its ``type``, or its ``role``."""
    hints = get_type_hints(kind)
    for name in ("type", "role"):
        words = get_args(bare(hints.get(name))) if name in hints else ()
        if words and all(isinstance(word, str) for word in words):
            return str(words[0])
    return ""


def sample(kind: Any, depth: int = 0) -> Any:
    """Return the smallest value of a type."""
    found = choices(kind)
    if not found:
        return None
    first, listed = inner(found[0])
    if listed:
        return [sample(first, depth + 1)]
    if get_origin(first) is Literal:
        return get_args(first)[0]
    if is_typeddict(first):
        hints = get_type_hints(first, include_extras=True)
        marked = {name for name, hint in hints.items() if "Required[" in str(hint)[:40]}
        needed = first.__required_keys__ | {n for n in marked if "NotReq" not in str(hints[n])[:40]}
        return {name: sample(hints[name], depth + 1) for name in hints if name in needed}
    return SAMPLES.get(first, {})


def shapes(kind: Any, depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield the places in a type, each with a value that has it.

    ``.name`` is the place of a field, and ``[kind]`` that of an object of this type.
    """
    for one in choices(kind):
        entry, listed = inner(one)
        if listed:
            for place, value in shapes(entry, depth):
                yield place, [value]
        elif not is_typeddict(entry):
            words = get_args(entry) if get_origin(entry) is Literal else [sample(entry)]
            yield from (("", word) for word in words)
        else:
            least, named = sample(entry), mark(entry)
            here = f"[{named}]" if named else ""
            yield here, least
            for name, field in get_type_hints(entry, include_extras=True).items():
                if depth < MOST and name not in ("type", "role"):
                    for place, value in shapes(field, depth + 1):
                        yield f"{here}.{name}{place}", {**least, name: value}


def tree(places: Iterable[str]) -> dict[str, Any]:
    """Return the places as nested objects, up to :data:`LISTED` levels."""
    top: dict[str, Any] = {}
    for place in sorted(places):
        here = top
        for step in place.split(".")[1:][:LISTED]:
            here = here.setdefault(f".{step}", {})
    return top


if __name__ == "__main__":
    found = {
        api: [shape for kind in kinds for shape in shapes(kind)] for api, kinds in routes().items()
    }
    if sys.argv[1:] == ["names"]:
        print(json.dumps({api: tree({p for p, _ in one}) for api, one in found.items()}, indent=0))
    else:
        for api, one in found.items():
            for place, body in one:
                print(json.dumps([api, place, body]))
