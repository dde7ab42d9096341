"""Prompt lookup: what followed the last time the text ended like this?"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.decoders.autoregressive.loop import Proposal
from paradecode.decoders.autoregressive.method import drafter
from paradecode.decoders.autoregressive.ngram_table import ORDER, TableDrafts, load_ngrams
from paradecode.decoders.autoregressive.odds import Odds
from paradecode.decoders.registry import local_path, parameter

LONGEST = 32
PRIOR = (0.15, 0.35, 0.5, 0.7, 0.8, 0.9)
"""Chance that a copied token is right, by :func:`_matching`'s bucket, before anything was seen."""


@drafter(
    "prompt-lookup",
    paper="Prompt Lookup Decoding",
    url="https://github.com/apoorvumang/prompt-lookup-decoding",
    aliases=("ngram", "prompt_lookup", "pld", "ngram-simple"),
    names={
        "prompt_lookup_max": "max_ngram",
        "prompt_lookup_min": "min_ngram",
        "max_matching_ngram_size": "max_ngram",
        "prompt_lookup_num_tokens": "num_speculative_tokens",
        "lookup_cache_static": "table",
    },
)
@dataclass
class PromptLookup:
    """Copy what followed an earlier occurrence of the last n tokens (Saxena 2023).

    The longest n-gram that occurred before wins, and of its occurrences the latest. An index from
    n-gram to position grows with the sequence, so a step costs O(max_ngram), not O(length).

    ``table``, a file made by ``paradecode train ngram-table`` or the name of a model whose table
    comes with the package, is asked where the text itself has nothing better to say, like the
    static cache of llama.cpp's lookup.

    When: a good start everywhere, and the default. Answers that repeat their prompt or themselves
    gain most (edits, extraction, lists, agents), free chat next to nothing.
    """

    max_ngram: int = parameter(3, 1, 32, "longest suffix that is looked up")
    min_ngram: int = parameter(1, 1, 32, "shortest suffix that is looked up")
    table: str = local_path("what the model often says: `paradecode train ngram-table`")
    _last: dict[tuple[int, ...], int] = field(default_factory=dict, repr=False)
    _indexed: int = 0
    _odds: Odds = field(default_factory=lambda: Odds(PRIOR), repr=False)
    _bucket: int = 0
    _table: TableDrafts | None = field(default=None, repr=False)
    _asked_table: bool = False

    def __post_init__(self) -> None:
        if self.min_ngram > self.max_ngram:
            raise InvalidInput("prompt-lookup.min_ngram", self.min_ngram, "give at most max_ngram")
        if self.table:
            self._table = TableDrafts(load_ngrams(self.table, "prompt-lookup.table"))

    def propose(self, seq: Sequence, limit: int) -> Proposal:
        tokens = seq.tokens
        if self._table is not None and self._indexed == 0:
            self._table.require(seq.about().vocab_size)
        self._index(tokens[self._tail :].tolist())
        end, chance = self._latest(tokens), 0.0
        if end is not None:
            self._bucket = _matching(tokens, end)
            chance = self._odds.of(self._bucket)
        self._asked_table = False
        if self._table is not None:
            context = tuple(tokens[-ORDER:].tolist())
            self._asked_table = self._table.first(context) > chance
            if self._asked_table:
                return TokenTree.chain(*self._table.draft(context, limit))
        if end is None:
            return EMPTY
        # The copy may run into what it copies: a period goes on for ever.
        copied = tokens[end : end + limit]
        draft = copied if len(copied) == limit else np.resize(copied, limit)
        return TokenTree.chain(draft, chance)
        yield  # A generator, though this drafter needs nothing from the engine.

    def observe(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        accepted = len(verdict.tokens) - 1
        if self._table is not None and self._asked_table:
            self._table.book(accepted, len(tree))
        elif len(tree):
            self._odds.update(self._bucket, accepted, min(accepted + 1, len(tree)))

    def _latest(self, tokens: NDArray[np.int32]) -> int | None:
        """Where the longest n-gram that ends the text was followed last time."""
        length = len(tokens)
        for size in range(min(self.max_ngram, length - 1), self.min_ngram - 1, -1):
            end = self._last.get(tuple(tokens[length - size :].tolist()))
            if end is not None:
                return end
        return None

    @property
    def _tail(self) -> int:
        return max(0, self._indexed - self.max_ngram)

    def _index(self, tokens: list[int]) -> None:
        """Enter every n-gram that ends before the last token; ``tokens`` start at ``_tail``."""
        start = self._tail
        for end in range(self._indexed, start + len(tokens) - 1):
            for size in range(self.min_ngram, min(self.max_ngram, end + 1) + 1):
                self._last[tuple(tokens[end + 1 - size - start : end + 1 - start])] = end + 1
        self._indexed = start + len(tokens) - 1


def _matching(tokens: NDArray[np.int32], end: int) -> int:
    """Bucket (1, 2, 3, 4.., 8.., 16..) of how many tokens before ``end`` equal the last ones."""
    size = min(end, LONGEST)
    same = tokens[end - size : end] == tokens[len(tokens) - size :]
    matched = size if same.all() else int(np.argmin(same[::-1]))
    return bisect_left((1, 2, 3, 7, 15), matched)
