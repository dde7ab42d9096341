"""Suffix decoding: the most frequent continuations of this text and of past outputs."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.history import (
    Branch,
    continuations,
    expected,
    following,
    occurrences,
    plant,
)
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.draft.past_outputs import Past, PastOutputs
from paradecode.methods.parameters import choice, parameter


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
class Suffix(ModelFree):
    """Draft along the most frequent continuations of the longest repeated suffixes (Oliaro 2024).

    For every length m at which the end of the text occurred before, a tree of at most
    m * max_spec_factor + max_spec_offset tokens is read off the counts of what followed; the one
    with the largest expected acceptance wins. The counts come from this request's own text and,
    apart, from the tenant's other outputs; they are found by comparing the whole text, not a tree.

    When: agents and pipelines that write nearly the same again and again: it learns from the
    tenant's earlier outputs. For single requests it is about as good as ``prompt-lookup``.
    """

    group = "copying"

    max_tree_depth: int = parameter(24, 1, 64, "longest suffix that is looked up")
    max_spec_factor: float = parameter(1.0, 0.0, 16.0, "draft tokens for each matching token")
    max_spec_offset: float = parameter(0.0, 0.0, 64.0, "draft tokens beside those")
    min_token_prob: float = parameter(0.1, 0.0, 1.0, "least chance of a draft token, by counts")
    max_cached_requests: int = parameter(1024, 0, 4096, "past outputs that are kept; 0 for none")
    mode: str = choice("tree", ("tree", "path"), "path follows the most frequent token only")
    _past: Past = field(default=Past(), repr=False)
    _outputs: PastOutputs | None = field(default=None, repr=False)
    _output: int = field(default=0, repr=False)

    def fill(self, seq: Sequence, draft: RatedTree, limit: int) -> None:
        self._open(seq)
        texts = [seq.tokens, self._past.text] if len(self._past.text) else [seq.tokens]
        best = max((self._best(text, seq.tokens, limit) for text in texts), key=lambda b: b[0])
        plant(draft, best[2], best[1])

    def learn(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        self._open(seq)
        if self._outputs is not None:
            self._outputs.extend(self._output, verdict.tokens)

    def _open(self, seq: Sequence) -> None:
        """Join the tenant's outputs, and read what others have written so far."""
        if self._outputs is None and self.max_cached_requests > 0:
            self._outputs = seq.shared("suffix", PastOutputs)
            self._output = self._outputs.open(self.max_cached_requests)
        if self._outputs is not None:
            self._past = self._outputs.others(self._output, self._past)

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
            best = max(best, (expected(branches), matched, branches), key=lambda found: found[0])
        return best
