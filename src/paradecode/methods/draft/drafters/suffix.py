"""Suffix decoding: the most frequent continuations of this text and of past outputs."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.methods.draft.growth import Trie
from paradecode.methods.draft.history import (
    BREAK,
    EVIDENCE,
    Branch,
    continuations,
    following,
    occurrences,
    planted,
)
from paradecode.methods.draft.loop import Drafter, Proposal
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.odds import Odds
from paradecode.methods.parameters import choice, parameter

MOST_TOKENS = 1 << 16
"""Past output tokens kept for one tenant: one comparison of them all takes some 10 us."""

_NOTHING = np.empty(0, np.int32)


class PastOutputs:
    """The latest outputs of one tenant, forgotten whole, oldest first."""

    def __init__(self, most_tokens: int = MOST_TOKENS) -> None:
        self.most_tokens = most_tokens
        self.tokens = 0
        self._outputs: OrderedDict[int, array[int]] = OrderedDict()
        self._opened = 0

    def __len__(self) -> int:
        return len(self._outputs)

    def open(self, most_outputs: int) -> int:
        """Make room for one more output; returns its key for :meth:`extend`."""
        while len(self._outputs) >= max(1, most_outputs):
            self._forget()
        self._opened += 1
        self._outputs[self._opened] = array("i")
        return self._opened

    def extend(self, output: int, tokens: list[int]) -> None:
        """Append to an output; one that was forgotten meanwhile stays so."""
        if output in self._outputs:
            self._outputs[output].extend(tokens)
            self.tokens += len(tokens)
            while self.tokens > self.most_tokens:
                self._forget()

    def text(self) -> NDArray[np.int32]:
        """int32: a copy of all outputs as they are now, each followed by BREAK."""
        pieces = []
        for output in self._outputs.values():
            pieces += [np.array(output, np.int32), np.array([BREAK], np.int32)]
        return np.concatenate(pieces) if pieces else _NOTHING

    def _forget(self) -> None:
        _, output = self._outputs.popitem(last=False)
        self.tokens -= len(output)


@drafter(
    "suffix",
    paper="SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications",
    arxiv="2411.04975",
    aliases=("suffix-decoding", "suffixdecoding", "arctic"),
    names={
        "suffix_decoding_max_tree_depth": "max_tree_depth",
        "suffix_decoding_max_spec_factor": "max_spec_factor",
        "suffix_decoding_max_spec_offset": "max_spec_offset",
        "suffix_decoding_min_token_prob": "min_token_prob",
        "suffix_decoding_max_cached_requests": "max_cached_requests",
        "max_spec_tokens": "num_speculative_tokens",
    },
)
@dataclass
class Suffix(Drafter):
    """Draft along the most frequent continuations of the longest repeated suffixes (Oliaro 2024).

    For every length m at which the end of the text occurred before, a tree of at most
    m * max_spec_factor + max_spec_offset tokens is read off the counts of what followed; the one
    with the largest expected acceptance wins. The counts come from this request's own text and,
    apart, from past outputs of the same tenant. They are those of a suffix tree, but found by
    comparing the whole text (see :func:`~paradecode.methods.draft.history.occurrences`).

    When: agents and pipelines that write nearly the same again and again: it learns from the
    tenant's earlier outputs. For single requests it is about as good as ``prompt-lookup``.
    """

    max_tree_depth: int = parameter(24, 1, 64, "longest suffix that is looked up")
    max_spec_factor: float = parameter(1.0, 0.0, 16.0, "draft tokens for each matching token")
    max_spec_offset: float = parameter(0.0, 0.0, 64.0, "draft tokens beside those")
    min_token_prob: float = parameter(0.1, 0.0, 1.0, "least chance of a draft token, by counts")
    max_cached_requests: int = parameter(1024, 0, 4096, "past outputs that are kept; 0 for none")
    mode: str = choice("tree", ("tree", "path"), "path follows the most frequent token only")
    _past: NDArray[np.int32] = field(default_factory=lambda: _NOTHING, repr=False)
    _outputs: PastOutputs | None = field(default=None, repr=False)
    _output: int = field(default=0, repr=False)
    _odds: Odds = field(default_factory=lambda: Odds(EVIDENCE), repr=False)
    _draft: Trie = field(default_factory=Trie, repr=False)

    def propose(self, seq: Sequence, limit: int) -> Proposal:
        self._open(seq)
        tokens = seq.tokens
        score, matched, branches = self._best(tokens, tokens, limit)
        if len(self._past):
            other = self._best(self._past, tokens, limit)
            if other[0] > score:
                score, matched, branches = other
        self._draft = planted(branches, matched, self._odds)
        return self._draft.tree() if branches else EMPTY
        yield  # A generator, though this drafter needs nothing from the engine.

    def observe(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        self._open(seq)
        self._draft.book(self._odds, tree, verdict)
        self._draft = Trie()
        if self._outputs is not None:
            self._outputs.extend(self._output, verdict.tokens)

    def _open(self, seq: Sequence) -> None:
        """Take a copy of what is known of the past, once; and join it."""
        if self._outputs is None and self.max_cached_requests > 0:
            self._outputs = seq.shared("suffix", PastOutputs)
            self._past = self._outputs.text()
            self._output = self._outputs.open(self.max_cached_requests)

    def _best(
        self, text: NDArray[np.int32], tail: NDArray[np.int32], limit: int
    ) -> tuple[float, int, list[Branch]]:
        """Score, matching length and tree of the best suffix of ``tail`` in ``text``."""
        starts, lengths = occurrences(text, tail, self.max_tree_depth)
        best: tuple[float, int, list[Branch]] = (0.0, 0, [])
        for matched in sorted(set(lengths.tolist()), reverse=True):
            wanted = matched * self.max_spec_factor + self.max_spec_offset + 1e-6
            size = min(limit, int(wanted))
            if size <= best[0]:
                break  # A score is at most the number of tokens, and shorter suffixes get fewer.
            rows = following(text, starts[lengths >= matched][::-1], size)
            width = 1 if self.mode == "path" else 64
            branches = continuations(rows, size, self.min_token_prob, width)
            score = expected(branches)
            if score > best[0]:
                best = (score, matched, branches)
        return best


def expected(branches: list[Branch]) -> float:
    """How many tokens would be accepted if the counts were probabilities."""
    reach: list[float] = []
    for parent, _, share in branches:
        reach.append(share if parent < 0 else share * reach[parent])
    return sum(reach)
