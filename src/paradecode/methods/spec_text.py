"""Parse method specs, which are texts ``name(key=value, ...)`` or JSON objects."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from paradecode.core.errors import InvalidInput

LISTED = "those that `paradecode methods` lists"
MAX_SPEC = 4096
"""The most characters of a spec, and of one text value in it; longer ones are refused."""
MAX_DEPTH = 16
"""The most nested brackets in a spec; deeper specs are refused."""

_NAME = re.compile(r"[A-Za-z_][\w.+-]*\s*(\(.*\))?", re.DOTALL)
"""Matches a value without quotes: a word, a part's name, or a part with settings in brackets."""
_QUOTED_OR_SIGN = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|.""", re.DOTALL)


def parts_of(text: str) -> list[str]:
    """Split a spec at each ``+`` outside of brackets and quotes; a JSON object is not split."""
    if len(text) > MAX_SPEC or text.lstrip().startswith("{"):
        return [text]
    try:
        return _cut(text, "+")
    except ValueError:  # Parsing the text as one spec raises the error.
        return [text]


def name_and_settings(text: str) -> tuple[str, dict[str, Any]]:
    """Parse one spec without ``+``; return its name and its settings. An empty name is ``greedy``.

    Raises:
        InvalidInput: if the text is no spec, or a setting is given twice.
    """
    if len(text) > MAX_SPEC:
        raise InvalidInput("decoder", text, f"give at most {MAX_SPEC} characters")
    text = text.strip()
    if text.startswith("{"):
        try:
            return named(json.loads(text, object_pairs_hook=_once))
        except InvalidInput:
            raise
        except (ValueError, RecursionError):
            raise InvalidInput("decoder", text, "this is not valid JSON") from None
    name, bracket, rest = text.partition("(")
    if not bracket:
        return name or "greedy", {}
    try:
        if not rest.endswith(")"):
            raise ValueError
        pairs = [_pair(piece) for piece in _cut(rest[:-1], ",") if piece.strip()]
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise InvalidInput("decoder", text, "write name(key=value, key=value)") from None
    return name, _once(pairs)


def _cut(text: str, mark: str) -> list[str]:
    """Split the text at each ``mark`` outside of brackets and quotes.

    Raises:
        ValueError: if brackets or quotes do not match, or brackets are nested too deeply.
    """
    pieces, depth = [""], 0
    for part in _QUOTED_OR_SIGN.findall(text):
        depth += (part in "([{") - (part in ")]}")
        if not 0 <= depth <= MAX_DEPTH or part in "'\"":  # A quote that nothing closes.
            raise ValueError
        if part == mark and depth == 0:
            pieces.append("")
        else:
            pieces[-1] += part
    if depth:
        raise ValueError
    return pieces


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip().isidentifier():
        raise ValueError
    return key.strip(), _value(value.strip())


def _value(text: str) -> Any:
    literal = {"true": True, "True": True, "false": False, "False": False, "None": None}
    if text in literal:
        return literal[text]
    if _NAME.fullmatch(text):  # A part with settings is read when its setting is checked.
        return text
    return ast.literal_eval(text)


def named(given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the ``method`` of an object and its other entries; a list of names means a fusion.

    Raises:
        InvalidInput: if the object has no method's name.
    """
    settings = dict(given)
    name = settings.pop("method", None)
    if isinstance(name, (list, tuple)) and all(isinstance(part, str) for part in name):
        name = "+".join(name)
    if not isinstance(name, str):
        raise InvalidInput("method", name, f"name one of {LISTED}")
    return name, settings


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, value in pairs:
        if key in given:
            raise InvalidInput("setting", key, "give it once")
        given[key] = value
    return given
