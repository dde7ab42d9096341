"""A suffix automaton with counts: which substrings texts have, how often, and what follows them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from heapq import heappop, heappush

from paradecode.core.tree import ROOT
from paradecode.methods.draft.history import Branch

START = 0
"""The state of the empty string, from which every text begins."""
NONE = -1

DEEPEST = 64
"""The longest substrings that are counted, in tokens; a longer one has the count of its end. The
limit bounds the counts that a token costs, however often the text repeats."""

STATE_BYTES, BRANCHING_BYTES, EDGE_BYTES = 23, 190, 60
"""Bytes in CPython of a state, of a state with several edges, and of each of those edges; with the
slack of arrays that grow."""


class SuffixAutomaton:
    """The substrings of several texts that grow at the same time (Blumer et al. 1985).

    A state stands for all substrings that end at the same places; its link leads to the longest
    suffix that also ends elsewhere. A text of n tokens makes at most 2 n states, in O(n). A text is
    named by the state of its end. The majority of states have one edge, which is stored in arrays;
    only states with several edges have a dictionary.
    """

    def __init__(self) -> None:
        self.counts = array("i", [0])
        """For each state, how often its substrings occur, if the shortest has at most DEEPEST
        tokens."""
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
        """The state behind a token; NONE if the token never came there."""
        if self._tokens[state] == token:
            return self._targets[state]
        edges = self._edges.get(state)
        return edges.get(token, NONE) if edges is not None else NONE

    def edges(self, state: int) -> Iterable[tuple[int, int]]:
        """The tokens that came behind a state, and the states behind these, the oldest first."""
        edges = self._edges.get(state)
        if edges is not None:
            return edges.items()
        return ((self._tokens[state], self._targets[state]),) if self._tokens[state] >= 0 else ()

    def extend(self, end: int, tokens: Iterable[int]) -> int:
        """Append tokens to the text that ends at ``end`` (START: a new one); returns its end."""
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
                while state >= 0:  # Every suffix that this token never followed leads to the end.
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
        """The suffixes of ``tail`` that occur, the longest first: state, and number of tokens.

        Suffixes that end at the same places have one state; only the longest is returned.
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
        """The tree of the ``limit`` most frequent continuations, the most frequent first.

        Args:
            least: continuations with a smaller share of all are left out.
            chain: whether to follow the most frequent token only.
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
        """The state of the last DEEPEST tokens of a longer substring."""
        links, lengths = self.links, self.lengths
        while lengths[state] > DEEPEST and lengths[links[state]] >= DEEPEST:
            state = links[state]
        return state

    def _split(self, state: int, token: int) -> int:
        """Split the state behind ``token``: a new one takes the substrings that ``state`` leads to.

        The old state keeps its longer substrings, which end at fewer places from now on. Returns
        the new state.
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
        """Set an edge of a state that already has edges."""
        label, edges = self._tokens[state], self._edges.get(state)
        if label == token:
            self._targets[state] = target
        elif edges is None:
            edges = self._edges[state] = {label: self._targets[state]}
            self._branches += 1
        if edges is not None:
            self._branches += token not in edges
            edges[token] = target
