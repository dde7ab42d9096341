"""Base class of every request body: strict types, errors that name the field, unknown fields."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    GetCoreSchemaHandler,
    ValidationError,
)
from pydantic_core import CoreSchema, ErrorDetails

from paradecode.serve.errors import ApiError, wrong
from paradecode.serve.protocol.table import rules_of
from paradecode.serve.validation import MOST, path_of, spelled

FOREIGN = "foreign"
"""Tag of an object whose type this server does not know."""
MOST_UNKNOWN = 64
"""The most distinct unknown names that are examined. A request with more of them is refused."""
NEAR = 2
"""The most letters by which a misspelt name may differ from the right one to be recognized."""


def _boolean(value: Any) -> Any:
    if value is not None and not isinstance(value, bool):
        raise ValueError("give true or false")
    return value


Yes = Annotated[Literal[True], BeforeValidator(_boolean)]
"""Only ``true``: neither 1 nor 1.0, which equal it in Python."""
No = Annotated[Literal[False], BeforeValidator(_boolean)]
"""Only ``false``."""


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
    """A JSON object from a request. Only numbers count as numbers: no strings, booleans or NaN.

    Unknown fields are kept until :func:`settle` decides about them.
    """

    model_config = ConfigDict(
        strict=True, extra="allow", allow_inf_nan=False, hide_input_in_errors=True
    )

    @property
    def dropped(self) -> tuple[str, ...]:
        """Names of what this object asks for in its known fields, and does not get."""
        return ()

    @classmethod
    def __get_pydantic_core_schema__(
        cls, source: type[BaseModel], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        """Let the check of every list stop at its first bad entry.

        That bounds the number of errors.
        """
        schema = handler(source)
        _end_early(schema)
        return schema


class Foreign(Body):
    """An object whose type this server does not know.

    Each place in a request has its own subclass.
    """

    type: str


class Said(str):
    """A text made from content parts, some of which may have no effect.

    Attributes:
        ignored: names of the fields and types of the parts that have no effect.
    """

    ignored: tuple[str, ...] = ()


AnyBody = TypeVar("AnyBody", bound=Body)


def kinds(
    *own: str, default: str | None = None, others: Mapping[str, str] | None = None
) -> Discriminator:
    """Return what chooses an object's class by its ``type``: one of ``own``, or :data:`FOREIGN`.

    Args:
        default: the type of an object that has no ``type``.
        others: a type that is read like another one -> that type of ``own``.
    """

    def tag(value: Any) -> str | None:
        found = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        if found is None:
            return default if isinstance(value, (dict, Body)) else None
        if not isinstance(found, str):
            return None
        found = (others or {}).get(found, found)
        return found if found in own or nearest(found, own) else FOREIGN

    return Discriminator(tag)


def validated(kind: type[AnyBody], value: Any) -> AnyBody:
    """Check a body, and return it as an object of its class.

    Raises:
        ApiError: 400, naming one wrong field.
    """
    if not isinstance(value, Mapping):
        raise ApiError(400, "the body must be a JSON object")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        if error.error_count() > MOST:  # Pydantic would describe all of them.
            message = f"the body has {error.error_count()} errors: more than are told one by one"
            raise ApiError(400, message) from None
        found = [(path_of(value, detail), detail) for detail in error.errors(include_url=False)]
    # If a value fits none of several types, each type reports an error. The one that got deepest
    # was probably meant.
    path, detail = max(found, key=lambda entry: len(entry[0]))
    there = dict.fromkeys(other["msg"] for where, other in found if where == path)
    raise _refusal(path, detail, list(there))


def settle(body: Body, strict: bool = False, ignore_unknown: bool = False) -> list[str]:
    """Remove from a body what has no effect, and return the places where it was.

    Args:
        strict: whether names that are in no table are refused.
        ignore_unknown: whether a name that is close to a known one is ignored, too.

    Raises:
        ApiError: 400 for a part that cannot be ignored, with the reason.
    """
    ignored: dict[str, None] = {}
    seen: set[tuple[type[Body], str]] = set()
    for part, path in _parts(body, []):
        place = ".".join(step for step in path if isinstance(step, str))
        if isinstance(part, Said):
            if strict and part.ignored:
                raise wrong(spelled(path), f"{part.ignored[0]} would have no effect")
            ignored |= dict.fromkeys(f"{place}{inner}" for inner in part.ignored)
            continue
        for name in part.dropped:
            if strict:
                raise wrong(spelled(path), f"{name} would have no effect")
            ignored[f"{place}[{name}]"] = None
        rules = rules_of(type(part))
        extra = part.__pydantic_extra__ or {}
        if isinstance(part, Foreign):
            param = spelled(path)
            if part.type in rules.refused:
                fix = f"{part.type!r} is not supported; {rules.refused[part.type]}"
                raise wrong(param, fix, "unsupported")
            if strict:
                raise wrong(param, f"there is no {part.type[:40]!r} here", "unknown_field")
            ignored[f"{place}[{part.type}]"] = None
            continue
        for name, value in extra.items():
            if value is None or (name in rules.refused and not value):
                continue
            param = spelled([*path, name])[:200]
            if name in rules.refused:
                fix = f"it is not supported; {rules.refused[name]}"
                raise wrong(param, fix, "unknown_field")
            known = name in rules.unused or (type(part), name) in seen
            if not known and (strict or not ignore_unknown):
                _check_name(type(part), name, param, strict)
                seen.add((type(part), name))
                if len(seen) > MOST_UNKNOWN:
                    raise ApiError(400, f"the body has more than {MOST_UNKNOWN} unknown fields")
            ignored[f"{place}.{name}".lstrip(".")] = None
        part.__pydantic_fields_set__.difference_update(extra)
        extra.clear()
    return list(ignored)


def _check_name(kind: type[Body], name: str, param: str, strict: bool) -> None:
    """Raise ApiError 400 for a misspelt name, or with ``strict`` for any unknown name."""
    near = nearest(name, _own(kind))
    if strict and not near:
        near = next(iter(difflib.get_close_matches(name[:100], _own(kind), 1)), None)
    if strict or near:
        fix = "there is no such field" + (f"; the nearest is {near}" if near else "")
        raise wrong(param, fix, "unknown_field")


def _parts(value: Any, path: list[str | int]) -> Iterator[tuple[Body | Said, list[str | int]]]:
    """Yield a body, and all bodies and joined texts inside it, each with its path."""
    if isinstance(value, (Body, Said)):
        yield value, path
    if isinstance(value, Body):
        for name, field in type(value).model_fields.items():
            inner = value.__dict__[name]
            if isinstance(inner, (Body, Said, list)):
                yield from _parts(inner, [*path, field.alias or name])
    elif isinstance(value, list) and value and isinstance(value[0], Body):
        for index, inner in enumerate(value):
            yield from _parts(inner, [*path, index])


def nearest(name: str, names: tuple[str, ...]) -> str | None:
    """Return the name that differs by at most :data:`NEAR` letters, or None.

    A short name may differ by half of its letters.
    """
    most = min(NEAR, len(name) // 2)
    letters = set(name)
    close = (
        known
        for known in names
        if abs(len(known) - len(name)) <= most and len(letters.difference(known)) <= most
    )
    return next((known for known in close if _distance(name, known) <= most), None)


def _distance(one: str, other: str) -> int:
    """Count the letters to insert, delete, replace or swap (optimal string alignment distance)."""
    older, row = [0] * (len(other) + 1), list(range(len(other) + 1))
    for i, letter in enumerate(one, 1):
        before, older, row = older, row, [i]
        for j, wanted in enumerate(other, 1):
            cost = min(older[j] + 1, row[-1] + 1, older[j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                cost = min(cost, before[j - 2] + 1)
            row.append(cost)
    return row[-1]


@lru_cache
def _own(kind: type[Body]) -> tuple[str, ...]:
    """Return every field name that objects of a class may have."""
    fields = [field.alias or name for name, field in kind.model_fields.items()]
    rules = rules_of(kind)
    return (*fields, *rules.unused, *rules.refused)


def _refusal(path: list[str | int], detail: ErrorDetails, said: list[str]) -> ApiError:
    param = spelled(path)[:200]
    if detail["type"] == "missing":
        return wrong(param, "it is required", "missing")
    if detail["type"] == "union_tag_invalid":
        given, known = (detail["ctx"][key] for key in ("tag", "expected_tags"))
        fix = f"there is no type {given!r}; the types are {known}".replace(f", '{FOREIGN}'", "")
        return wrong(f"{param}.type", fix)
    if detail["type"] == "union_tag_not_found":
        return wrong(param, "give an object with a type")
    told = [text.removeprefix("Value error, ") for text in said[:3]]
    return wrong(param, ", or ".join(text[:1].lower() + text[1:] for text in told))
