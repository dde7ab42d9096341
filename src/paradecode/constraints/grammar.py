"""Compiles schemas, expressions and grammars with llguidance, within bounds."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from paradecode.constraints.limits import (
    MAX_REGEX,
    MAX_TEXT,
    checked_choices,
    checked_schema,
    checked_text,
    refused,
)
from paradecode.core.errors import InvalidInput
from paradecode.models.tokenizer import Tokenizer
from paradecode.models.vocabulary import spelling

T = TypeVar("T")

STACK = 256 << 20
"""Bytes of address space for the compiling thread's stack. The library recurses along references;
the largest accepted schema needs about 30 MB."""

JSON_STYLE = {"whitespace_flexible": False, "lenient": False, "coerce_one_of": False}
"""Compact JSON, because a small model may write spaces for ever where they are allowed. A keyword
that the library cannot enforce is an error and is never ignored."""

NO_TEXT = "no text meets it"

_turn = threading.Lock()


def grammar_of(kind: str, value: object) -> str:
    """llguidance's grammar text of a constraint.

    Raises:
        InvalidInput: the value has the wrong type or exceeds a limit.
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
        InvalidInput: the library cannot express it, it is too complex, or no text meets it. The
            error shows ``named``, the value that the caller gave.
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
        raise refused(named, f"change it: {made}")
    return made


def _short(message: str) -> str:
    """The first line of a message; the other lines show the library's internal state."""
    line = message.strip().partition("\n")[0]
    return NO_TEXT if line == "NoExtensionBias" else line[:200]


def _with_deep_stack(function: Callable[[], T]) -> T:
    thread = ThreadPoolExecutor(1, "compile constraint")
    with _turn:  # The stack size is a setting of the whole process.
        usual = threading.stack_size(STACK)
        try:
            done = thread.submit(function)  # Starts the thread.
        finally:
            threading.stack_size(usual)
    with thread:
        return done.result()


class _TokenizerView:
    """The attributes that ``llguidance.TokenizerWrapper`` reads."""

    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer, eos: int) -> None:
        self._tokenizer, self.eos_token_id = tokenizer, eos
        ids = range(tokenizer.vocab_size)
        self.special_token_ids = [i for i in ids if tokenizer.is_control(i)]
        self.tokens = [
            tokenizer.token(i).encode() if tokenizer.is_control(i) else spelling(tokenizer, i)
            for i in ids
        ]

    def __call__(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, special=False, parse_special=False)


def check_byte_level(tokenizer: Tokenizer) -> None:
    """Raise InvalidInput unless each token of the tokenizer is a sequence of bytes."""
    if not tokenizer.byte_level:
        fix = "use a model whose tokenizer is byte-level BPE: only there bytes and tokens agree"
        raise InvalidInput("constraint", "this model's tokenizer", fix)


def library_tokenizer(tokenizer: Tokenizer, eos_tokens: Sequence[int]) -> Any:
    """An ``llguidance.LLTokenizer`` that knows the bytes of every token.

    Raises:
        InvalidInput: the library is missing, or the tokenizer is not byte-level BPE.
    """
    try:
        from llguidance import LLTokenizer, TokenizerWrapper
    except ImportError:
        fix = "install what it needs: pip install -e '.[constraints]' in the checkout"
        raise InvalidInput("constraint", "llguidance", fix) from None
    check_byte_level(tokenizer)
    if not eos_tokens:
        raise InvalidInput("constraint", "this model", "use a model with an EOS token")
    wrapper = TokenizerWrapper(_TokenizerView(tokenizer, eos_tokens[0]))
    return LLTokenizer(wrapper, eos_token=list(eos_tokens))
