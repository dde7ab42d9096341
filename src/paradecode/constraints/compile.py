"""Compiles the constraints of requests, and caches the latest compiled ones."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from paradecode.constraints import thoughts
from paradecode.constraints.grammar import (
    GrammarConstraint,
    check_byte_level,
    compile_grammar,
    grammar_of,
    library_tokenizer,
)
from paradecode.constraints.json_schema import plain
from paradecode.constraints.limits import (
    MAX_REGEX,
    checked_choices,
    checked_schema,
    checked_text,
    refused,
)
from paradecode.constraints.regular.automaton import token_automaton, too_large
from paradecode.constraints.regular.expressions import Expression, one_of, parse, text
from paradecode.constraints.regular.schema import schema_expression
from paradecode.constraints.thoughts import ThoughtBudget
from paradecode.core.constraint import Constraint
from paradecode.core.errors import InvalidInput
from paradecode.models.tokenizer import Tokenizer
from paradecode.models.vocabulary import spelling

GRAMMARS = ("json_schema", "json_object", "regex", "lark", "choice")
"""Types of constraints that llguidance compiles."""
KINDS = (*GRAMMARS, "python", "thoughts")
KEPT = 64
"""Number of compiled constraints in the cache. The least recently used one is dropped first."""


class Compiler:
    """Compiles constraints for one model. Several threads may use it.

    Args:
        tokenizer: the model's tokenizer.
        vocab_size: number of rows of the model's LM head.
        eos_tokens: token ids that end the model's outputs.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_tokens: Sequence[int]) -> None:
        self._tokenizer, self._vocab_size, self._eos = tokenizer, vocab_size, tuple(eos_tokens)
        self._library: Any = None
        self._texts: tuple[bytes, ...] = ()
        self._kept: OrderedDict[str, Constraint] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, given: Mapping[str, Any], family: str = "autoregressive") -> Constraint:
        """Compile the constraint that ``{"type": ..., "value": ...}`` describes.

        ===============  ===========================================================
        type             value
        ===============  ===========================================================
        ``json_schema``  a JSON schema, or its text
        ``json_object``  no value; any JSON object is allowed
        ``regex``        an expression (Rust's syntax) that the whole output matches
        ``lark``         a Lark grammar with a rule ``start``
        ``choice``       a list of texts
        ``python``       ``{"files": {name: source}, "code": text before the output}``
        ``thoughts``     ``{"budget": tokens, "inside": flag, "then": constraint}``, all optional:
                         the closing mark follows so many tokens of reasoning, which the prompt
                         has opened (``inside``) or the output opens, and then the constraint holds
        ===============  ===========================================================

        Args:
            family: family of the method that will use the constraint; ``diffusion`` needs an
                explicit automaton.

        Raises:
            InvalidInput: if the constraint is not understood, too large, too complex, or not
                supported.
        """
        kind, value = _parts(given)
        try:
            key = json.dumps([family, kind, value], allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            key = ""  # Compiling it will raise an error that says what is wrong.
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        made = self._make(kind, value, family)
        with self._lock:
            if key:
                self._kept[key] = made
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return made

    def _make(self, kind: str, value: object, family: str) -> Constraint:
        if kind == "python" and family == "autoregressive":
            from paradecode.constraints.python import python_constraint

            return python_constraint(value, self._spelled())
        if kind == "thoughts" and family == "autoregressive":
            return self._budget(value)
        if family == "diffusion":
            try:
                return token_automaton(_expression(kind, value), self._spelled())
            except RecursionError:
                raise too_large() from None
        library = self._tokens()
        start = compile_grammar(grammar_of(kind, value), library, value)
        return GrammarConstraint(start, library, self._vocab_size, kind)

    def _budget(self, value: object) -> ThoughtBudget:
        budget, inside, inner = thoughts.parts(value)
        if inner is not None and inner.get("type") == "thoughts":
            raise refused(value, "give another constraint for what follows the reasoning")
        then, tokenizer = None if inner is None else self.compile(inner), self._tokenizer
        close = tokenizer.encode(thoughts.CLOSE.decode(), special=False)

        def spelled(token: int) -> bytes:
            control = tokenizer.is_control(token)
            return tokenizer.token(token).encode() if control else spelling(tokenizer, token)

        size = self._vocab_size
        return ThoughtBudget(budget, inside, then, close, lru_cache(1 << 14)(spelled), size)

    def _spelled(self) -> tuple[bytes, ...]:
        """Return the bytes of each token id of the LM head, or b"" if the id is not text."""
        tokenizer = self._tokenizer
        check_byte_level(tokenizer)
        with self._lock:
            if not self._texts:
                self._texts = tuple(
                    b"" if tokenizer.is_control(token) else spelling(tokenizer, token)
                    for token in range(self._vocab_size)
                )
            return self._texts

    def _tokens(self) -> Any:
        with self._lock:
            if self._library is None:
                self._library = library_tokenizer(self._tokenizer, self._eos)
            return self._library


def _expression(kind: str, value: object) -> Expression:
    """Return a constraint as a regular expression for a canvas, or raise InvalidInput."""
    if kind == "choice":
        return one_of(text(each) for each in checked_choices(value))
    if kind == "regex":
        return parse(checked_text(value, MAX_REGEX))
    if kind == "json_schema":
        return schema_expression(plain(checked_schema(value)))
    fix = "use json_schema, regex or choice: a canvas needs a constraint that is a finite automaton"
    raise InvalidInput("constraint.type", kind, fix)


def _parts(given: object) -> tuple[str, object]:
    if not isinstance(given, Mapping):
        raise InvalidInput("constraint", given, 'give {"type": ..., "value": ...}')
    unknown = sorted(str(name) for name in given if name not in ("type", "value"))
    if unknown:
        raise InvalidInput("constraint", unknown[0], "give type and value only")
    kind = given.get("type")
    if kind not in KINDS:
        raise InvalidInput("constraint.type", kind, f"use one of {', '.join(KINDS)}")
    if kind == "json_object":
        if given.get("value") not in (None, True, {}):
            raise InvalidInput("constraint.value", given["value"], "json_object has none")
        return "json_object", None
    return str(kind), given.get("value")
