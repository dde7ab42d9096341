"""Suffix decoding: the most frequent continuations of this text and of past outputs.

:class:`PastOutputs` holds what one tenant's requests have written, up to the present token.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.history import Branch, expected, plant
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.draft.suffix_automaton import START, SuffixAutomaton
from paradecode.methods.parts import choice, parameter

MOST_BYTES = 16 << 20
"""Bytes for the outputs of one tenant; about 100,000 tokens without repeats, and more with
repeats."""

OUTPUT_BYTES = 110
"""Bytes that the end of an output takes in CPython."""

MOST_NEW = 4096
"""The most tokens of its text that a request enters in one step; it takes about 20 ms, and more
would let others wait longer."""


@dataclass
class KnownOutputs:
    """Outputs that are forgotten together, with the place where each ends so far."""

    texts: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    ends: dict[int, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return self.texts.nbytes + OUTPUT_BYTES * len(self.ends)

    def extend(self, output: int, tokens: list[int]) -> None:
        self.ends[output] = self.texts.extend(self.ends.get(output, START), tokens)


class PastOutputs:
    """The latest outputs of all requests of one tenant, finished or not.

    Substrings cannot be removed from an automaton. When the oldest outputs must go, a younger
    automaton takes over; it has received everything since the first one was half full. Both
    together take at most ``most_bytes``, plus what one call writes.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self._old, self._young = KnownOutputs(), KnownOutputs()
        self._opened = 0

    def __len__(self) -> int:
        """Number of outputs that are known."""
        return len(self._old.ends)

    @property
    def nbytes(self) -> int:
        return self._old.nbytes + self._young.nbytes

    @property
    def texts(self) -> SuffixAutomaton:
        """The automaton that has all known outputs."""
        return self._old.texts

    def open(self) -> int:
        """Begin another output; returns its key for :meth:`extend`."""
        self._opened += 1
        return self._opened

    def extend(self, output: int, tokens: list[int], most_outputs: int) -> None:
        """Append tokens to an output. If the output was forgotten, only these tokens of it are
        known."""
        self._old.extend(output, tokens)
        # What is old has two thirds of the bytes at most, and what is young half as much.
        filled = max(
            self._old.nbytes / (self.most_bytes * 2 / 3), len(self._old.ends) / (most_outputs + 1)
        )
        if filled > 0.5:
            self._young.extend(output, tokens)
        if filled >= 1.0:
            self._old, self._young = self._young, KnownOutputs()


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
    apart, from the tenant's outputs, those that are being written included. Both are suffix
    automata, in place of the paper's suffix trees: the same counts, O(1) a token. Its hybrid with a
    draft model is ``suffix+draft-model``.

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
    _own: SuffixAutomaton = field(default_factory=SuffixAutomaton, repr=False)
    _end: int = field(default=START, repr=False)
    _read: int = field(default=0, repr=False)
    _output: int = field(default=0, repr=False)

    def fill(self, seq: TokenSequence, draft: RatedTree, limit: int) -> None:
        new = seq.tokens[self._read : self._read + MOST_NEW].tolist()
        self._end, self._read = self._own.extend(self._end, new), self._read + len(new)
        texts = [self._own]
        if self.max_cached_requests > 0:
            texts.append(seq.shared("suffix", PastOutputs).texts)
        tail = seq.tokens[-self.max_tree_depth :].tolist()
        best = max((self._best(text, tail, limit) for text in texts), key=lambda found: found[0])
        plant(draft, best[2], best[1])

    def learn(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        if self.max_cached_requests > 0:
            outputs = seq.shared("suffix", PastOutputs)
            self._output = self._output or outputs.open()
            outputs.extend(self._output, verdict.tokens, self.max_cached_requests)

    def _best(
        self, texts: SuffixAutomaton, tail: list[int], limit: int
    ) -> tuple[float, int, list[Branch]]:
        """Score, matching length and tree of the best suffix of ``tail`` in ``texts``."""
        best: tuple[float, int, list[Branch]] = (0.0, 0, [])
        for state, matched in texts.suffixes(tail):
            wanted = matched * self.max_spec_factor + self.max_spec_offset + 1e-6
            size = min(limit, int(wanted))
            if size <= best[0]:
                break  # A score is at most the number of tokens, and shorter suffixes get fewer.
            chain = self.mode == "path"
            branches = texts.continuations(state, size, self.min_token_prob, chain)
            best = max(best, (expected(branches), matched, branches), key=lambda found: found[0])
        return best
