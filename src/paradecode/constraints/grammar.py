"""Compiles schemas, expressions and grammars with llguidance, within bounds."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from paradecode.constraints.limits import (
    FIELD,
    MAX_REGEX,
    MAX_TEXT,
    checked_choices,
    checked_schema,
    checked_text,
)
from paradecode.core.errors import InvalidInput

T = TypeVar("T")

STACK = 256 << 20
"""Bytes (of address space) for the thread that compiles: the library recurses as deep as a chain of
references, and the largest schema that is accepted needs about 30 MB."""

JSON_STYLE = {"whitespace_flexible": False, "lenient": False, "coerce_one_of": False}
"""Compact JSON: a small model with free whitespace may never come to the point. What the library
cannot enforce is an error, never ignored."""

NO_TEXT = "no text meets it"

_turn = threading.Lock()


def grammar_of(kind: str, value: object) -> str:
    """llguidance's grammar text of a constraint.

    Raises:
        InvalidInput: a value of the wrong type, or larger than the limits.
    """
    from llguidance import LLMatcher

    if kind == "regex":
        return LLMatcher.grammar_from_regex(checked_text(value, MAX_REGEX))
    if kind == "lark":
        return LLMatcher.grammar_from_lark(checked_text(value, MAX_TEXT))
    if kind == "choice":
        texts = (json.dumps(text, ensure_ascii=False) for text in checked_choices(value))
        return LLMatcher.grammar_from_lark("start: " + " | ".join(texts))
    schema = {"type": "object"} if kind == "json_object" else checked_schema(value)
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_STYLE)


def compile_grammar(grammar: str, tokenizer: Any, named: object) -> Any:
    """An ``llguidance.LLMatcher`` at its start.

    The limits keep compiling under about 0.1 s, and a mask under about 20 ms.

    Raises:
        InvalidInput: the library cannot express it, it is too complex, or no text meets it; the
            error shows ``named``, what the caller gave.
    """
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(
        initial_lexer_fuel=300_000,
        max_lexer_states=20_000,
        max_grammar_size=200_000,
        verbose_errors=False,
    )

    def build() -> Any:
        matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
        if not matcher.is_error():
            bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            first = np.flatnonzero(np.unpackbits(bits, bitorder="little"))
            if not matcher.is_error() and np.isin(first, tokenizer.eos_tokens).all():
                return "only the empty text meets it" if matcher.is_accepting() else NO_TEXT
        return _short(matcher.get_error()) if matcher.is_error() else matcher

    made = _with_deep_stack(build)
    if isinstance(made, str):
        raise InvalidInput(FIELD, named, f"change it: {made}")
    return made


def _short(message: str) -> str:
    """The first line; the rest of the library's messages is its own state."""
    line = message.strip().partition("\n")[0]
    return NO_TEXT if line == "NoExtensionBias" else line[:200]


def _with_deep_stack(function: Callable[[], T]) -> T:
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(function())
        except BaseException as error:
            failed.append(error)

    with _turn:  # The size is a setting of the whole process.
        usual = threading.stack_size(STACK)
        try:
            thread = threading.Thread(target=run, name="compile constraint")
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join()
    if failed:
        raise failed[0]
    return done[0]
