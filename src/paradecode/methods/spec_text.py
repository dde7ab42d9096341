"""Spec texts, ``name(key=value, ...)`` or a JSON object: read into names and values."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from typing import Any

from paradecode.core.errors import InvalidInput

MAX_SPEC = 4096
"""Characters of a spec, and of one text in it."""


def parts_of(text: str) -> list[str]:
    """The text cut at each ``+`` outside of brackets and quotes; a JSON object stays whole."""
    if len(text) > MAX_SPEC or text.lstrip().startswith("{"):
        return [text]
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in "([") - (letter in ")]")
        if letter == "+" and not quote and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def name_and_settings(text: str) -> tuple[str, dict[str, Any]]:
    """What a text without ``+`` names, and how it sets it; no name is ``greedy``.

    Raises:
        InvalidInput: for a text that is no spec, or a setting that is given twice.
    """
    if len(text) > MAX_SPEC:
        raise InvalidInput("decoder", text, f"give at most {MAX_SPEC} characters")
    text = text.strip()
    if text.startswith("{"):
        return _read_object(text)
    name, bracket, rest = text.partition("(")
    if not bracket:
        return name or "greedy", {}
    try:
        call = ast.parse(f"f({rest}", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or not isinstance(call.func, ast.Name):
            raise ValueError
        pairs = [(_key(word), _value(word.value)) for word in call.keywords]
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise InvalidInput("decoder", text, "write name(key=value, key=value)") from None
    return name, _once(pairs)


def _read_object(text: str) -> tuple[str, dict[str, Any]]:
    try:
        given = json.loads(text, object_pairs_hook=_once)
    except InvalidInput:
        raise
    except (ValueError, RecursionError):
        raise InvalidInput("decoder", text, "this is not valid JSON") from None
    name = given.pop("method", None)
    if isinstance(name, list) and all(isinstance(part, str) for part in name):
        name = "+".join(name)
    if not isinstance(name, str):
        raise InvalidInput("method", name, "give the method's name as a text")
    return name, given


def _once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, value in pairs:
        if key in given:
            raise InvalidInput("setting", key, "give it once")
        given[key] = value
    return given


def _key(word: ast.keyword) -> str:
    if word.arg is None:
        raise ValueError
    return word.arg


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name):
        return {"true": True, "false": False}.get(node.id, node.id)
    if isinstance(node, ast.Call):  # A part with settings: read when its setting is checked.
        return ast.unparse(node)
    return ast.literal_eval(node)
