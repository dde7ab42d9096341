"""ADED: a tri-gram table stands in for the model, searched with a bandit rule."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from paradecode.core.noise import Purpose, uniform
from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.methods.draft.growth import (
    Trie,
    confidence,
    guess,
    log_softmax,
)
from paradecode.methods.draft.loop import Drafter, Proposal
from paradecode.methods.draft.method import drafter
from paradecode.methods.draft.needs import Needs
from paradecode.methods.draft.odds import Odds
from paradecode.methods.parameters import parameter

WIDTH = 12
"""Tokens kept after each pair."""

PRIOR = (0.01, 0.01, 0.01, 0.08, 0.15, 0.25, 0.35, 0.4, 0.55, 0.65, 0.65)
"""Chance that a token is right, by its probability in the table (measured, 135M)."""

MOST_PAIRS = 1 << 15
MOST_PROMPT = 4096
"""Tokens of a prompt, the last ones, that are counted."""

Pair = tuple[int, int]


class TriGrams:
    """P(next token | last two): at most WIDTH tokens a pair; the pair unused longest goes first."""

    def __init__(self, most_pairs: int = MOST_PAIRS) -> None:
        self.most_pairs = most_pairs
        self._table: OrderedDict[Pair, dict[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._table)

    def of(self, pair: Pair) -> dict[int, float]:
        """Token -> probability, the most likely first; empty for a pair that is not known."""
        return self._table.get(pair, {})

    def count(self, tokens: list[int]) -> None:
        """Enter the pairs of a text that are not known yet, by relative frequency."""
        counts: dict[Pair, dict[int, float]] = {}
        for a, b, c in zip(tokens, tokens[1:], tokens[2:]):
            after = counts.setdefault((a, b), {})
            after[c] = after.get(c, 0.0) + 1.0
        for pair, after in counts.items():
            if pair not in self._table:
                self._set(pair, after)

    def move(self, pair: Pair, probabilities: dict[int, float], rate: float) -> None:
        """Move a pair's distribution towards ``probabilities``; a new pair takes them over."""
        old = self._table.get(pair)
        if old is None:
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
        best = sorted(weights.items(), key=lambda item: -item[1])[:WIDTH]
        total = sum(weight for _, weight in best)
        self._table[pair] = {token: weight / total for token, weight in best}
        self._table.move_to_end(pair)
        if len(self._table) > self.most_pairs:
            self._table.popitem(last=False)


@dataclass
class _Place:
    """A node of the search: what may follow it, how often it was visited, what that brought."""

    options: list[tuple[int, float]]
    visits: int = 1
    value: float = 0.0
    children: dict[int, int] = field(default_factory=dict)


@drafter(
    "aded",
    paper="Adaptive Draft-Verification for Efficient Large Language Model Decoding",
    arxiv="2407.12021",
    aliases=("adaptive-draft-verification",),
)
@dataclass
class Aded(Drafter):
    """Search a tri-gram table for drafts, balancing likelihood and exploration (Liu 2024).

    The table is the tenant's. It starts with the prompt's own tri-grams (the paper counts a large
    corpus) and moves towards the model's probabilities wherever a row on the accepted path showed
    them. The tree is that of a Monte-Carlo search: descend by
    Q + exploration * P * sqrt(N) / (1 + n), add one node, back its value up; the nodes visited most
    are the draft. Noise in P is a function of the request's seed, so runs repeat.

    When: much traffic of one kind, so that the table has something to learn from. On mixed prompts
    copying gains more for less work.
    """

    needs = Needs(all_rows=True, noise=True)

    exploration: float = parameter(1.0, 0.0, 10.0, "weight of what was tried less often")
    simulations: int = parameter(24, 1, 256, "descents a draft")
    depth: int = parameter(6, 1, 32, "most draft tokens in a row")
    rate: float = parameter(0.3, 0.01, 1.0, "how fast the table moves towards the model")
    noise: float = parameter(0.05, 0.0, 1.0, "share of noise in what the search expects")
    _counted: bool = field(default=False, repr=False)
    _odds: Odds = field(default_factory=lambda: Odds(PRIOR), repr=False)
    _draft: Trie = field(default_factory=Trie, repr=False)

    def propose(self, seq: Sequence, limit: int) -> Proposal:
        table = seq.shared("aded", TriGrams)
        if not self._counted:
            table.count(seq.tokens[-MOST_PROMPT:].tolist())
            self._counted = True
        self._draft = self._search(seq, table, limit)
        return self._draft.tree() if len(self._draft) else EMPTY
        yield  # A generator, though this drafter needs nothing from the engine.

    def observe(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        self._draft.book(self._odds, tree, verdict)
        self._draft = Trie()
        table = seq.shared("aded", TriGrams)
        ids, logits = reply.logits.select(verdict.rows).top_k(WIDTH)
        chances = np.exp(log_softmax(logits))
        context = [*seq.tokens[-2:].tolist(), *verdict.tokens[:-1]]
        for row in range(len(verdict.rows) if len(seq.tokens) > 1 else 0):
            seen = dict(zip(ids[row].tolist(), chances[row].tolist(), strict=True))
            table.move((context[row], context[row + 1]), seen, self.rate)

    def _search(self, seq: Sequence, table: TriGrams, limit: int) -> Trie:
        start = tuple(seq.tokens[-2:].tolist())

        def place(path: tuple[int, ...]) -> _Place:
            context = (*start, *path)[-2:]
            known = table.of((context[0], context[1])) if len(context) == 2 else {}
            return _Place(self._expect(seq, len(path), known) if known else [])

        paths: list[tuple[int, ...]] = [()]
        places = [place(())]
        for _ in range(max(self.simulations, limit)):
            walked = [0]
            chance = [1.0]
            while len(paths[walked[-1]]) < self.depth:
                here = places[walked[-1]]
                best = self._choose(here, places)
                if best is None:
                    break
                token, probability = best
                chance.append(probability)
                known = here.children.get(token)
                if known is not None:
                    walked.append(known)
                    continue
                here.children[token] = len(places)
                walked.append(len(places))
                paths.append((*paths[walked[-2]], token))
                places.append(place(paths[-1]))
                break
            reward = 1.0
            for step in range(len(walked) - 1, -1, -1):
                reward *= chance[step]
                places[walked[step]].visits += 1
                places[walked[step]].value += reward
        return self._take(places, limit)

    def _expect(
        self, seq: Sequence, depth: int, known: dict[int, float]
    ) -> list[tuple[int, float]]:
        ids = np.fromiter(known.keys(), np.int32, len(known))
        chances = np.fromiter(known.values(), np.float64, len(known))
        if seq.sampler.warp.temperature > 0.0:
            order, weights = guess(seq, depth, ids, np.log(chances + 1e-9), self.offer.noise)
            return list(zip(order, weights, strict=True))
        return list(zip(ids.tolist(), self._noisy(seq, depth, ids, chances), strict=True))

    def _noisy(
        self, seq: Sequence, depth: int, ids: NDArray[np.int32], chances: NDArray[np.float64]
    ) -> list[float]:
        if self.noise == 0.0:
            return chances.tolist()
        drawn = uniform(seq.sampler.noise_key(depth, Purpose.DRAFT), ids)
        return ((1.0 - self.noise) * chances + self.noise * drawn / drawn.sum()).tolist()

    def _choose(self, here: _Place, places: list[_Place]) -> tuple[int, float] | None:
        """The option with the best upper bound; None where nothing may follow."""
        best, found = -1.0, None
        spread = self.exploration * sqrt(here.visits)
        for token, chance in here.options:
            child = here.children.get(token)
            visits = 0 if child is None else places[child].visits - 1
            mean = 0.0 if child is None or visits == 0 else places[child].value / visits
            bound = mean + spread * chance / (1 + visits) + 1e-6 * chance
            if bound > best:
                best, found = bound, (token, chance)
        return found

    def _take(self, places: list[_Place], limit: int) -> Trie:
        """The most visited nodes; a parent is never visited less than its child."""
        trie = Trie()
        fringe = [(ROOT, places[0], child) for child in places[0].children.items()]
        while fringe and len(trie) < limit:
            best = max(range(len(fringe)), key=lambda i: places[fringe[i][2][1]].visits)
            parent, above, (token, index) = fringe.pop(best)
            kind = confidence(dict(above.options)[token])
            node = trie.add(parent, token, self._odds.of(kind), kind)
            fringe += [(node, places[index], child) for child in places[index].children.items()]
        return trie
