"""Compiles llguidance's grammars within bounds, and follows them as constraints."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from paradecode.constraints.json_schema import bounded, plain
from paradecode.constraints.limits import (
    MAX_REGEX,
    MAX_TEXT,
    checked_choices,
    checked_schema,
    checked_text,
    refused,
)
from paradecode.core.errors import DecoderError, InvalidInput
from paradecode.models.tokenizer import Tokenizer
from paradecode.models.vocabulary import spelling

T = TypeVar("T")

STACK = 256 << 20
"""Bytes of address space for the stack of the compiling thread.

The library recurses along references, and the largest accepted schema needs about 30 MB.
"""

JSON_STYLE = {"whitespace_flexible": False, "lenient": False, "coerce_one_of": False}
"""Options for compact JSON, because a small model may write endless spaces if they are allowed.

A keyword that the library cannot enforce is an error, and is never ignored.
"""

NO_TEXT = "no text meets it"

_turn = threading.Lock()


def grammar_of(kind: str, value: object) -> str:
    """Return llguidance's grammar text of a constraint.

    Raises:
        InvalidInput: if the value has the wrong type or exceeds a limit.
    """
    from llguidance import LLMatcher

    if kind == "regex":
        return LLMatcher.grammar_from_regex(checked_text(value, MAX_REGEX))
    if kind == "lark":
        return LLMatcher.grammar_from_lark(checked_text(value, MAX_TEXT))
    if kind == "choice":
        texts = (json.dumps(text, ensure_ascii=False) for text in checked_choices(value))
        return LLMatcher.grammar_from_lark("start: " + " | ".join(texts))
    schema = {"type": "object"} if kind == "json_object" else plain(checked_schema(value))
    schema = bounded(schema)
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=JSON_STYLE)


def compile_grammar(grammar: str, tokenizer: Any, named: object) -> Any:
    """Compile a grammar, and return an ``llguidance.LLMatcher`` that has read nothing.

    The limits bound the time to compile to about 0.1 s, and the time of a mask to about 20 ms.

    Raises:
        InvalidInput: if the library cannot express the grammar, if the grammar is too complex, or
            if no text satisfies it. The error shows ``named``, the value that the caller gave.
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
        raise refused(named, f"no text can be held to it: {made}")
    return made


def _short(message: str) -> str:
    """Return the line of the library's error message that names the error.

    It is the line that is marked as the error, or else the first line. The other lines show the
    library's internal state.
    """
    lines = message.strip().splitlines() or [""]
    marked = (line.partition("error: ")[2] for line in lines if line.startswith("error: "))
    line = next(marked, lines[0])
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
    """A tokenizer with the attributes that ``llguidance.TokenizerWrapper`` reads."""

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
    """Raise InvalidInput if a token of the tokenizer is not a sequence of bytes."""
    if not tokenizer.byte_level:
        fix = "use a model whose tokenizer is byte-level BPE: only there bytes and tokens agree"
        raise InvalidInput("constraint", "this model's tokenizer", fix)


def library_tokenizer(tokenizer: Tokenizer, eos_tokens: Sequence[int]) -> Any:
    """Return an ``llguidance.LLTokenizer`` that knows the bytes of every token.

    Raises:
        InvalidInput: if the library is missing, or if the tokenizer is not byte-level BPE.
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


# A constraint that follows a grammar of llguidance.


class GrammarConstraint:
    """A compiled grammar as a constraint.

    Args:
        start: an ``llguidance.LLMatcher`` that has read nothing. Matchers are copies of it.
        tokenizer: the ``llguidance.LLTokenizer`` for which ``start`` was compiled.
        vocab_size: number of rows of the model's LM head. Ids that the tokenizer lacks are never
            allowed.
        kind: the constraint's type, which errors show.
    """

    waits = False

    def __init__(self, start: Any, tokenizer: Any, vocab_size: int, kind: str) -> None:
        self.start, self.tokenizer, self.kind = start, tokenizer, kind
        self.vocab_size = vocab_size

    def follow(self, ends: Sequence[int]) -> GrammarMatcher:
        return GrammarMatcher(self, ends)


class GrammarMatcher:
    """A matcher that follows a compiled grammar (see :class:`paradecode.core.constraint.Matcher`).

    The library's matcher has read one path. To answer about another path, it rolls back to the end
    of the common prefix and reads the rest. It never reads a token that ends the output, because
    its answers about such tokens differ from grammar to grammar.
    """

    def __init__(self, constraint: GrammarConstraint, ends: Sequence[int]) -> None:
        self._constraint, self._tokenizer = constraint, constraint.tokenizer
        self._matcher = constraint.start.deep_copy()
        self._ends = frozenset(ends)
        self._end_ids = np.array(sorted(ends), np.int32)
        self._never = np.array(sorted({*self._tokenizer.eos_tokens} - self._ends), np.int32)
        self._path: list[int] = []
        self._masks: dict[tuple[int, ...], bytes] = {}

    def mask(self, path: Sequence[int]) -> NDArray[np.bool_] | None:
        if not self._reach(path):
            return None
        known = tuple(path)
        if known not in self._masks:  # A draft model and the verifier ask for the same path.
            self._masks[known] = bytes(self._matcher.compute_bitmask())
            self._check()
        bits = np.unpackbits(np.frombuffer(self._masks[known], np.uint8), bitorder="little")
        allowed = np.zeros(self._constraint.vocab_size, bool)
        known_ids = min(len(allowed), self._tokenizer.vocab_size)
        allowed[:known_ids] = bits[:known_ids]
        allowed[self._never] = False
        # If no token begins a text that must come next, the library allows a token that it refuses
        # afterwards.
        if np.count_nonzero(allowed) == 1:
            only = int(allowed.argmax())
            allowed[only] = self._matcher.validate_tokens([only]) == 1
        allowed[self._end_ids] = self._matcher.is_accepting()
        if allowed.any():
            return allowed
        if self._matcher.is_accepting():  # The text is complete, and no token can end it.
            return None
        fix = "loosen it: this model's tokens cannot complete the text"
        raise InvalidInput("constraint", self._constraint.kind, fix)

    def allows(self, path: Sequence[int], token: int) -> bool:
        if not self._reach(path):
            return True
        if token in self._ends:
            return bool(self._matcher.is_accepting())
        certain = self._matcher.compute_ff_tokens()
        if certain:  # The mask allows only the first one, and no other spelling of its text.
            return bool(token == certain[0])
        return token not in self._never and self._matcher.validate_tokens([token]) == 1

    def possible(self, path: Sequence[int]) -> int:
        self._reach(path)
        return len(self._path)

    def forced(self, path: Sequence[int], limit: int) -> list[int]:
        if limit <= 0 or not self._reach(path):
            return []
        spelled = self._matcher.compute_ff_bytes()
        if not spelled:
            return []
        tokens: list[int] = self._tokenizer.tokenize_bytes(spelled)[:limit]
        return tokens[: self._matcher.validate_tokens(tokens)]

    def complete(self, path: Sequence[int]) -> bool:
        if not self._reach(path):
            return False
        if self._matcher.is_stopped():
            return True
        if not self._matcher.is_accepting():
            return False
        allowed = self.mask(path)
        return allowed is None or not np.delete(allowed, self._end_ids).any()

    def advance(self, tokens: Sequence[int]) -> None:
        text = list(tokens)
        if text and text[-1] in self._ends:
            last = text.pop()
            if not self.allows(text, last):
                raise DecoderError(f"token {last} ends a text that the constraint has open")
        if not self._reach(text):
            bad = text[len(self._path)]
            raise DecoderError(f"token {bad} was committed, which the constraint forbids")
        self._path, self._masks = [], {}

    def _reach(self, path: Sequence[int]) -> bool:
        """Read ``path`` as far as the constraint allows; return True if it allows all of it."""
        same = 0
        for mine, theirs in zip(self._path, path):
            if mine != theirs:
                break
            same += 1
        if len(self._path) > same:
            self._matcher.rollback(len(self._path) - same)
            del self._path[same:]
        for token in path[same:]:
            stops = token in self._ends or token in self._never or self._matcher.is_stopped()
            if stops or self._matcher.try_consume_tokens([token]) != 1:
                self._check()
                return False
            self._path.append(token)
        self._check()
        return True

    def _check(self) -> None:
        """Raise InvalidInput if the library has reached a limit. It reports this only if asked."""
        if self._matcher.is_error():
            said = str(self._matcher.get_error()).strip().partition("\n")[0][:200]
            raise InvalidInput("constraint", self._constraint.kind, f"simplify it: {said}")
