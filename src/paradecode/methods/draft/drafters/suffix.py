"""Suffix decoding: draft the most frequent continuations in this text and in past outputs.

:class:`PastOutputs` stores the outputs of one tenant's requests, up to the present token.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.history import Branch, expected, plant
from paradecode.methods.draft.loop import drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.parts import choice, parameter

START = 0
"""The state of the empty string, from which every text begins."""
NONE = -1

DEEPEST = 64
"""Number of tokens in the longest substrings that are counted.

A longer substring has the count of its last DEEPEST tokens. The limit bounds the number of counts
that a token changes, however often the text repeats.
"""

STATE_BYTES, BRANCHING_BYTES, EDGE_BYTES = 23, 190, 60
"""Bytes in CPython of a state, of a state with several edges, and of each of its edges.

The numbers include the unused space of growing arrays.
"""


class SuffixAutomaton:
    """Stores the substrings of several texts that grow at the same time (Blumer et al. 1985).

    A state stands for all substrings that end at the same positions. Its link leads to the longest
    suffix that also ends elsewhere. A text of n tokens makes at most 2 n states, in O(n). A text is
    identified by the state of its end. Most states have one edge, which is stored in arrays; only
    states with several edges have a dictionary.
    """

    def __init__(self) -> None:
        self.counts = array("i", [0])
        """Number of occurrences of each state's substrings.

        It is right only if the shortest of these substrings has at most DEEPEST tokens.
        """
        self.links = array("i", [NONE])
        self.lengths = array("i", [0])
        self._tokens, self._targets = array("i", [NONE]), array("i", [NONE])
        self._edges: dict[int, dict[int, int]] = {}
        self._branches = 0

    @property
    def nbytes(self) -> int:
        single = STATE_BYTES * len(self.lengths)
        return single + BRANCHING_BYTES * len(self._edges) + EDGE_BYTES * self._branches

    def follow(self, state: int, token: int) -> int:
        """Return the state after ``token``, or NONE if the token never followed ``state``."""
        if self._tokens[state] == token:
            return self._targets[state]
        edges = self._edges.get(state)
        return edges.get(token, NONE) if edges is not None else NONE

    def edges(self, state: int) -> Iterable[tuple[int, int]]:
        """Return the tokens that followed ``state`` and the states after them, the oldest first."""
        edges = self._edges.get(state)
        if edges is not None:
            return edges.items()
        return ((self._tokens[state], self._targets[state]),) if self._tokens[state] >= 0 else ()

    def extend(self, end: int, tokens: Iterable[int]) -> int:
        """Append tokens to the text that ends at ``end`` (START: a new one); return its end."""
        links, lengths, counts = self.links, self.lengths, self.counts
        labels, targets, edges = self._tokens, self._targets, self._edges
        for token in tokens:
            if lengths[end] > DEEPEST:
                end = self._capped(end)
            known = targets[end] if labels[end] == token else self.follow(end, token)
            if known >= 0:
                end = known if lengths[known] == lengths[end] + 1 else self._split(end, token)
            else:
                state, end = end, self._state(lengths[end] + 1, START, 0)
                while state >= 0:  # Link each suffix after which the token is new.
                    label = labels[state]
                    if label == NONE:
                        labels[state], targets[state] = token, end
                    elif label == token or (state in edges and token in edges[state]):
                        known = targets[state] if label == token else edges[state][token]
                        exact = lengths[known] == lengths[state] + 1
                        links[end] = known if exact else self._split(state, token)
                        break
                    else:
                        self._lead(state, token, end)
                    state = links[state]
            state = end
            while state:
                counts[state] += 1
                state = links[state]
        return end

    def suffixes(self, tail: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yield the state and the length of each stored suffix of ``tail``, longest first.

        Suffixes that end at the same positions have one state; only the longest of them is
        returned.
        """
        state = length = 0
        for token in tail:
            while (after := self.follow(state, token)) < 0 and state != START:
                state = self.links[state]
                length = self.lengths[state]
            if after >= 0:
                state, length = after, length + 1
        while state > START:
            yield state, length
            state = self.links[state]
            length = self.lengths[state]

    def continuations(self, state: int, limit: int, least: float, chain: bool) -> list[Branch]:
        """Return the ``limit`` most frequent continuations as a tree, the most frequent first.

        Args:
            least: continuations with a smaller share of all occurrences are left out.
            chain: True follows only the most frequent token.
        """
        found: list[Branch] = []
        counts = self.counts
        after = [(counts[child], token, child) for token, child in self.edges(state)]
        total = sum(count for count, _, _ in after)
        heap: list[tuple[int, int, int, int, int, float]] = []
        pushed, parent, above = 0, ROOT, total
        while True:
            if chain and len(after) > 1:
                after = [max(after, key=lambda entry: entry[0])]
            for count, token, child in after:
                if count >= least * total:
                    heappush(heap, (-count, pushed, parent, token, child, count / above))
                    pushed += 1
            if not heap or len(found) == limit:
                return found
            less, _, parent, token, child, share = heappop(heap)
            found.append((parent, token, share))
            parent, above = len(found) - 1, -less
            child = self._capped(child)
            after = [(counts[state], token, state) for token, state in self.edges(child)]

    def _capped(self, state: int) -> int:
        """Return the state of the last DEEPEST tokens of a longer substring."""
        links, lengths = self.links, self.lengths
        while lengths[state] > DEEPEST and lengths[links[state]] >= DEEPEST:
            state = links[state]
        return state

    def _split(self, state: int, token: int) -> int:
        """Split the state after ``token``, and return the new state.

        The new state takes the substrings that ``state`` leads to. The old one keeps its longer
        substrings, which end at fewer positions from now on.
        """
        known = self.follow(state, token)
        split = self._state(self.lengths[state] + 1, self.links[known], self.counts[known])
        self._tokens[split], self._targets[split] = self._tokens[known], self._targets[known]
        if known in self._edges:
            self._edges[split] = self._edges[known].copy()
            self._branches += len(self._edges[split])
        self.links[known] = split
        while state >= 0 and self.follow(state, token) == known:
            self._lead(state, token, split)
            state = self.links[state]
        return split

    def _state(self, length: int, link: int, count: int) -> int:
        self.lengths.append(length)
        self.links.append(link)
        self.counts.append(count)
        self._tokens.append(NONE)
        self._targets.append(NONE)
        return len(self.lengths) - 1

    def _lead(self, state: int, token: int, target: int) -> None:
        """Set the edge of ``token`` in a state that already has an edge."""
        label, edges = self._tokens[state], self._edges.get(state)
        if label == token:
            self._targets[state] = target
        elif edges is None:
            edges = self._edges[state] = {label: self._targets[state]}
            self._branches += 1
        if edges is not None:
            self._branches += token not in edges
            edges[token] = target


MOST_BYTES = 16 << 20
"""The most bytes that the outputs of one tenant take.

This is enough for about 100,000 tokens without repeats, and for more with repeats.
"""

OUTPUT_BYTES = 110
"""Bytes in CPython that the end state of one output takes."""

MOST_NEW = 4096
"""The most tokens of its text that a request adds to the automaton in one step.

This takes about 20 ms. A higher value would let other requests wait longer.
"""


@dataclass
class KnownOutputs:
    """Stores outputs that are dropped together, and the state at each output's present end."""

    texts: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    ends: dict[int, int] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return self.texts.nbytes + OUTPUT_BYTES * len(self.ends)

    def extend(self, output: int, tokens: list[int]) -> None:
        self.ends[output] = self.texts.extend(self.ends.get(output, START), tokens)


class PastOutputs:
    """Stores the latest outputs of all requests of one tenant, finished or not.

    Substrings cannot be removed from an automaton. If the oldest outputs must go, a younger
    automaton takes over. It has received everything since the old one was half full. Both automata
    together take at most ``most_bytes``, plus the bytes that one call writes.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.most_bytes = most_bytes
        self._old, self._young = KnownOutputs(), KnownOutputs()
        self._opened = 0

    def __len__(self) -> int:
        """Return the number of stored outputs."""
        return len(self._old.ends)

    @property
    def nbytes(self) -> int:
        return self._old.nbytes + self._young.nbytes

    @property
    def texts(self) -> SuffixAutomaton:
        """The automaton that has all stored outputs."""
        return self._old.texts

    def open(self) -> int:
        """Begin another output, and return its key for :meth:`extend`."""
        self._opened += 1
        return self._opened

    def extend(self, output: int, tokens: list[int], most_outputs: int) -> None:
        """Append tokens to an output. If the output was dropped, only the new tokens are stored."""
        self._old.extend(output, tokens)
        # The old automaton may take two thirds of the bytes, and the young one a third.
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
class Suffix(ModelFree):
    """Draft along the most frequent continuations of the longest repeated suffixes (Oliaro 2024).

    The end of the text is looked up in earlier text with every length m. For each m that occurs,
    the counts of the following tokens give a tree of at most m * max_spec_factor + max_spec_offset
    tokens. The tree with the largest expected acceptance is the draft.

    The counts come from this request's own text and, separately, from the tenant's outputs,
    including outputs that are being written. Both are suffix automata, in place of the paper's
    suffix trees: the same counts, O(1) per token. The paper's hybrid with a draft model is
    ``suffix+draft-model``.

    When: agents and pipelines that write nearly the same again and again: it learns from the
    tenant's earlier outputs. For single requests it is about as good as ``prompt-lookup``.
    """

    group = "copying"

    max_tree_depth: int = parameter(24, 1, 64, "longest suffix that is looked up")
    max_spec_factor: float = parameter(1.0, 0.0, 16.0, "draft tokens for each matching token")
    max_spec_offset: float = parameter(0.0, 0.0, 64.0, "number of draft tokens in addition")
    min_token_prob: float = parameter(0.1, 0.0, 1.0, "least probability of a draft token by counts")
    max_cached_requests: int = parameter(1024, 0, 4096, "past outputs that are stored; 0 for none")
    mode: str = choice("tree", ("tree", "path"), "path: drafts follow only the most frequent token")
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
        """Return score, matching length and tree of the best suffix of ``tail`` in ``texts``."""
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
