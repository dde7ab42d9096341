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
from paradecode.decoders.autoregressive.odds import Odds
from paradecode.decoders.registry import parameter

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
    },
)
@dataclass
class PromptLookup:
    """Copy what followed an earlier occurrence of the last n tokens (Saxena 2023).

    The longest n-gram that occurred before wins, and of its occurrences the latest. An index from
    n-gram to position grows with the sequence, so a step costs O(max_ngram), not O(length).
    """

    max_ngram: int = parameter(3, 1, 32, "longest suffix that is looked up")
    min_ngram: int = parameter(1, 1, 32, "shortest suffix that is looked up")
    _last: dict[tuple[int, ...], int] = field(default_factory=dict, repr=False)
    _indexed: int = 0
    _odds: Odds = field(default_factory=lambda: Odds(PRIOR), repr=False)
    _bucket: int = 0

    def __post_init__(self) -> None:
        if self.min_ngram > self.max_ngram:
            raise InvalidInput("prompt-lookup.min_ngram", self.min_ngram, "give at most max_ngram")

    def propose(self, seq: Sequence, limit: int) -> Proposal:
        tokens = seq.tokens
        self._index(tokens[self._tail :].tolist())
        length = len(tokens)
        for size in range(min(self.max_ngram, length - 1), self.min_ngram - 1, -1):
            end = self._last.get(tuple(tokens[length - size :].tolist()))
            if end is not None:
                # The copy may run into what it copies: a period goes on for ever.
                copied = tokens[end : end + limit]
                draft = copied if len(copied) == limit else np.resize(copied, limit)
                self._bucket = _matching(tokens, end)
                return TokenTree.chain(draft, self._odds.of(self._bucket))
        return EMPTY
        yield  # A generator, though this drafter needs nothing from the engine.

    def observe(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        if len(tree):
            accepted = len(verdict.tokens) - 1
            self._odds.update(self._bucket, accepted, min(accepted + 1, len(tree)))

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
