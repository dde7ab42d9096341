"""ADED drafter: drafts come from a table of trigrams, which is searched with a bandit rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import sqrt

import numpy as np

from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.noise import Purpose, uniform
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.acceptance import kind_of
from paradecode.methods.draft.growth import guess, log_softmax
from paradecode.methods.draft.history import Recent
from paradecode.methods.draft.loop import Needs, drafter
from paradecode.methods.draft.model_free import ModelFree, RatedTree
from paradecode.methods.draft.ngram_table import MOST_RANKS, load_ngrams
from paradecode.methods.parts import local_path, parameter

PAIR_BYTES = 1200
"""Bytes that a pair with ``MOST_RANKS`` tokens takes in CPython."""

MOST_PAIRS = 1 << 15

Pair = tuple[int, int]


class TriGrams(Recent[Pair, dict[int, float]]):
    """Stores next-token probabilities after pairs of tokens, at most MOST_RANKS for each pair.

    The pair that was unused longest is dropped first.

    Args:
        corpus: function from a pair that is not stored yet to its next-token distribution:
            probability by token, the most probable first.
    """

    entry_bytes = PAIR_BYTES

    def __init__(
        self, corpus: Callable[[Pair], dict[int, float]] | None = None, most_pairs: int = MOST_PAIRS
    ) -> None:
        super().__init__(most_pairs)
        self._corpus = corpus

    def of(self, pair: Pair) -> dict[int, float]:
        """Return each next token's probability, most probable first; empty for an unknown pair."""
        known = self.get(pair)
        if known is None:
            return {} if self._corpus is None else self._corpus(pair)
        return known

    def count(self, tokens: list[int]) -> None:
        """Add the pairs of a text that are not stored yet, with their relative frequencies.

        If the corpus also knows a pair, the mean of both distributions is stored. The corpus's
        probabilities need not sum to 1; a larger sum gives the corpus more weight than the text.
        """
        counts: dict[Pair, dict[int, float]] = {}
        for a, b, c in zip(tokens, tokens[1:], tokens[2:]):
            after = counts.setdefault((a, b), {})
            after[c] = after.get(c, 0.0) + 1.0
        for pair, after in counts.items():
            if pair not in self:
                total = sum(after.values())
                self.move(pair, {token: count / total for token, count in after.items()}, 0.5)

    def move(self, pair: Pair, probabilities: dict[int, float], rate: float) -> None:
        """Move a pair's distribution towards ``probabilities``; a new pair takes them unchanged."""
        old = self.of(pair)
        if not old:
            self._set(pair, probabilities)
            return
        self._set(
            pair,
            {
                token: (1.0 - rate) * old.get(token, 0.0) + rate * probabilities.get(token, 0.0)
                for token in {**old, **probabilities}
            },
        )

    def _set(self, pair: Pair, weights: dict[int, float]) -> None:
        best = sorted(weights.items(), key=lambda item: -item[1])[:MOST_RANKS]
        total = sum(weight for _, weight in best)
        self.put(pair, {token: weight / total for token, weight in best})


def trigrams(seq: TokenSequence, table: str) -> TriGrams:
    """Return the tenant's table, which begins as the corpus ``table``, or empty if ``table`` is "".

    Args:
        table: path of a file, or name of a model whose table is installed.

    Raises:
        InvalidInput: if the file was counted with a larger vocabulary than the model's.
    """

    def counted() -> TriGrams:
        corpus = load_ngrams(table)
        corpus.require(seq.about().vocab_size)
        return TriGrams(corpus.chances)

    return seq.shared(f"aded {table}", counted if table else TriGrams)


# Monte-Carlo tree search: descend by an upper confidence bound, add a node, update its path.

Options = Callable[[tuple[int, ...]], list[tuple[int, float]]]
"""Function from a path of draft tokens to the tokens that may follow it, with probabilities."""


@dataclass
class _Place:
    """A node of the search, with its possible next tokens, its visits and their values' sum."""

    path: tuple[int, ...]
    options: list[tuple[int, float]]
    visits: int = 1
    value: float = 0.0
    children: dict[int, _Place] = field(default_factory=dict)


class BanditSearch:
    """Monte-Carlo tree search: one new node per descent; the most visited become the draft.

    Args:
        options: function from a path to the tokens that may follow it, with probabilities.
        depth: the most tokens of a path.
        exploration: weight that favours options which were tried less often.
    """

    def __init__(self, options: Options, depth: int, exploration: float) -> None:
        self._options, self._depth, self._exploration = options, depth, exploration
        self._root = _Place((), options(()))

    def descend(self) -> None:
        """Walk from the root to a new node, and add its value to all nodes on the way."""
        walked, chances = [self._root], [1.0]
        while len(walked[-1].path) < self._depth:
            here = walked[-1]
            best = self._choose(here)
            if best is None:
                break
            token, chance = best
            chances.append(chance)
            known = here.children.get(token)
            if known is None:
                path = (*here.path, token)
                here.children[token] = _Place(path, self._options(path))
                walked.append(here.children[token])
                break
            walked.append(known)
        reward = 1.0
        for place, chance in zip(reversed(walked), reversed(chances), strict=True):
            reward *= chance
            place.visits += 1
            place.value += reward

    def plant(self, draft: RatedTree, limit: int) -> None:
        """Add the most visited nodes to the draft. A parent always comes before its child."""
        fringe = [(ROOT, self._root, child) for child in self._root.children.items()]
        while fringe and len(draft) < limit:
            best = max(range(len(fringe)), key=lambda i: fringe[i][2][1].visits)
            parent, above, (token, place) = fringe.pop(best)
            node = draft.rate(parent, token, kind_of(dict(above.options)[token]))
            fringe += [(node, place, child) for child in place.children.items()]

    def _choose(self, here: _Place) -> tuple[int, float] | None:
        """Return the option with the highest upper confidence bound; None if nothing may follow."""
        best, found = -1.0, None
        spread = self._exploration * sqrt(here.visits)
        for token, chance in here.options:
            child = here.children.get(token)
            visits = 0 if child is None else child.visits - 1
            mean = 0.0 if child is None or visits == 0 else child.value / visits
            bound = mean + spread * chance / (1 + visits) + 1e-6 * chance
            if bound > best:
                best, found = bound, (token, chance)
        return found


MOST_PROMPT = 4096
"""Number of tokens at the end of a prompt whose trigrams are counted."""


@drafter(
    "aded",
    paper="Adaptive Draft-Verification for Efficient Large Language Model Decoding",
    arxiv="2407.12021",
    aliases=("adaptive-draft-verification",),
)
class Aded(ModelFree):
    """Search a tri-gram table for drafts, balancing likelihood and exploration (Liu 2024).

    The table is shared by the tenant's requests. It starts with the counts of a corpus in ``table``
    (a file of ``paradecode train ngram-table --alternatives 12``, or the name of a model whose
    table comes with the package) and with the prompt's own trigrams. It moves towards the model's
    probabilities at each token of the accepted path.

    A Monte-Carlo search makes the tree: descend by Q + exploration * P * sqrt(N) / (1 + n), add one
    node, and add its value to the nodes above it. The most visited nodes are the draft. The random
    part of P follows from the request's seed, so runs repeat.

    When: much traffic of one kind, so that the table has something to learn from. On mixed prompts
    copying gains more for less work.
    """

    needs = Needs(all_rows=True, noise=True)
    group = "aded"

    exploration: float = parameter(1.0, 0.0, 10.0, "weight of tokens that were tried less often")
    simulations: int = parameter(24, 1, 256, "number of descents through the tree for each draft")
    depth: int = parameter(6, 1, 32, "most draft tokens on a path")
    rate: float = parameter(0.3, 0.01, 1.0, "share of the model's probabilities in an update")
    noise: float = parameter(0.05, 0.0, 1.0, "share of noise in the expected rewards of the search")
    table: str = local_path("counted in a corpus: `paradecode train ngram-table`")
    _counted: bool = field(default=False, repr=False)

    def __post_init__(self) -> None:
        if self.table:
            load_ngrams(self.table)  # Raises now, not when the first draft is made.

    def fill(self, seq: TokenSequence, draft: RatedTree, limit: int) -> None:
        table = trigrams(seq, self.table)
        if not self._counted:
            table.count(seq.tokens[-MOST_PROMPT:].tolist())
            self._counted = True
        start = seq.tokens[-2:].tolist()

        def options(path: tuple[int, ...]) -> list[tuple[int, float]]:
            context = [*start, *path][-2:]
            known = table.of((context[0], context[1])) if len(context) == 2 else {}
            return self._expected(seq, len(path), known) if known else []

        search = BanditSearch(options, self.depth, self.exploration)
        for _ in range(max(self.simulations, limit)):
            search.descend()
        search.plant(draft, limit)

    def learn(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        table = trigrams(seq, self.table)
        ids, logits = reply.logits.select(verdict.rows).top_k(MOST_RANKS)
        chances = np.exp(log_softmax(logits))
        context = [*seq.tokens[-2:].tolist(), *verdict.tokens[:-1]]
        for row in range(len(verdict.rows) if len(seq.tokens) > 1 else 0):
            seen = dict(zip(ids[row].tolist(), chances[row].tolist(), strict=True))
            table.move((context[row], context[row + 1]), seen, self.rate)

    def _expected(
        self, seq: TokenSequence, depth: int, known: dict[int, float]
    ) -> list[tuple[int, float]]:
        """Return tokens that may follow ``depth`` draft tokens, and the search's probabilities."""
        ids = np.fromiter(known.keys(), np.int32, len(known))
        chances = np.fromiter(known.values(), np.float64, len(known))
        if seq.sampler.warp.temperature > 0.0:
            order, weights = guess(seq, depth, ids, np.log(chances + 1e-9), self.offer.noise)
            return list(zip(order, weights, strict=True))
        if self.noise > 0.0:
            drawn = uniform(seq.sampler.noise_key(depth, Purpose.DRAFT), ids)
            chances = (1.0 - self.noise) * chances + self.noise * drawn / drawn.sum()
        return list(zip(ids.tolist(), chances.tolist(), strict=True))
