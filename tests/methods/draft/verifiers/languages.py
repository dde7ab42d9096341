"""Random toy languages, drafters that sample trees, and the exact output distribution of rules.

The source of randomness is a branching oracle: a run takes the first branch at every decision, and
is repeated for all other branches. A distribution is then a finite sum without sampling error.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from typing import TypeVar

import numpy as np

from paradecode.core.tree import ROOT, Drawn, Mode, TokenTree
from paradecode.methods.draft.verifiers.rule import (
    Chance,
    Row,
    Rule,
    SamplingVerifier,
    TopDown,
    run,
)
from paradecode.methods.parts import known, make

VERIFIERS = {name: make("verifier", name) for name in known("verifier")}
RULES = {name: v.rule for name, v in VERIFIERS.items() if isinstance(v, SamplingVerifier)}
"""Rules of the sampling verifiers: pure functions of (rows of p, tree, chance)."""


def top_down(level: Callable[[Row, int, TokenTree, Chance], tuple[int | None, int]]) -> Rule:
    """Return the rule that a top-down verifier makes of ``level``."""
    verifier = TopDown()
    vars(verifier)["level"] = level
    return verifier.rule


V = 3
Word = tuple[int, ...]
Law = dict[Word, float]
T = TypeVar("T")


class Oracle:
    """Replays decisions, then takes the first possible branch and notes the others."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script, self.taken, self.weight = list(script), 0, 1.0
        self.open: list[list[int]] = []

    def accept(self, p: float, q: float = 1.0) -> bool:
        chance = 1.0 if p >= q > 0 else (p / q if q > 0 else float(p > 0))
        return self._branch([chance, 1.0 - chance]) == 0

    def draw(self, weights: np.ndarray) -> int:
        return self._branch((weights / weights.sum()).tolist())

    def _branch(self, chances: list[float]) -> int:
        if self.taken == len(self.script):
            first, *others = [i for i, chance in enumerate(chances) if chance > 0]
            self.open += [[*self.script, other] for other in others]
            self.script.append(first)
        choice = self.script[self.taken]
        self.taken += 1
        self.weight *= chances[choice]
        return choice


def outcomes(play: Callable[[Oracle], T]) -> Iterator[tuple[float, T]]:
    """Return every outcome of a random experiment, with its probability."""
    todo: list[list[int]] = [[]]
    while todo:
        oracle = Oracle(todo.pop())
        result = play(oracle)
        todo += oracle.open
        yield oracle.weight, result


class Language:
    """Gives p and q of every context; q is half p and half noise unless given otherwise."""

    def __init__(self, seed: int, mixture: float = 0.5, vocabulary: int = V) -> None:
        self.seed, self.mixture, self.v = seed, mixture, vocabulary
        self._rows: dict[tuple[int, Word], np.ndarray] = {}
        self._drafts: dict[Word, np.ndarray] = {}

    def _noise(self, kind: int, context: Word) -> np.ndarray:
        key = kind, context
        if key not in self._rows:
            rng = np.random.default_rng([self.seed, kind, *(token + 1 for token in context)])
            self._rows[key] = rng.dirichlet(np.full(self.v, 0.7))
        return self._rows[key]

    def p(self, context: Word) -> np.ndarray:
        return self._noise(0, context)

    def q(self, context: Word) -> np.ndarray:
        found = self._drafts.get(context)
        if found is None:
            target = self.p(context)
            found = self.mixture * self._noise(1, context) + (1 - self.mixture) * target
            self._drafts[context] = found
        return found

    def shares(self, tree: TokenTree) -> np.ndarray:
        """Return q of each node's token after its parent's path."""
        words = words_of(tree)
        return np.array([self.q(words[i][:-1])[words[i][-1]] for i in range(len(tree))])

    def likely(self, tree: TokenTree, least: float) -> np.ndarray:
        return self.shares(tree) > least

    def ranked(self, tree: TokenTree) -> TokenTree:
        """Return the tree with q as its estimates."""
        return replace(tree, estimates=self.shares(tree))


class Sharp(Language):
    """A language at temperature 0: p has all its mass on one token."""

    def p(self, context: Word) -> np.ndarray:
        return (np.arange(self.v) == self._noise(0, context).argmax()).astype(float)


class Disjoint(Language):
    """A language whose q gives only tokens that p never gives."""

    def p(self, context: Word) -> np.ndarray:
        return np.array([*self._noise(0, context)[:1] * 0 + 1.0, *np.zeros(self.v - 1)])

    def q(self, context: Word) -> np.ndarray:
        tail = self._noise(1, context)[1:]
        return np.array([0.0, *(tail / tail.sum())])


class Twigs:
    """A tree that is being sampled with an oracle; nodes are numbered in drawing order."""

    def __init__(self, language: Language, chance: Chance) -> None:
        self.language, self.chance = language, chance
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.words: dict[int, Word] = {ROOT: ()}
        self.drawn: dict[int, Drawn] = {}

    def add(self, parent: int, token: int) -> int:
        self.tokens.append(token)
        self.parents.append(parent)
        node = len(self.tokens) - 1
        self.words[node] = (*self.words[parent], token)
        return node

    def q(self, node: int) -> np.ndarray:
        return self.language.q(self.words[node])

    def note(self, node: int, mode: Mode, order: Sequence[int] | None = None) -> None:
        ids = np.arange(self.language.v)
        self.drawn[node] = Drawn(mode, ids, self.q(node), None if order is None else tuple(order))

    def iid(self, parent: int, count: int) -> list[int]:
        self.note(parent, Mode.IID)
        return [self.add(parent, self.chance.draw(self.q(parent))) for _ in range(count)]

    def pooled(self, parent: int, count: int) -> dict[int, int]:
        order = [self.chance.draw(self.q(parent)) for _ in range(count)]
        self.note(parent, Mode.IID, order)
        return {self.add(parent, token): order.count(token) for token in dict.fromkeys(order)}

    def swor(self, parent: int, count: int) -> list[int]:
        self.note(parent, Mode.SWOR)
        rest, nodes = self.q(parent).copy(), []
        for _ in range(min(count, int((rest > 0).sum()))):
            token = self.chance.draw(rest)
            rest[token] = 0.0
            nodes.append(self.add(parent, token))
        return nodes

    def top(self, parent: int, count: int) -> list[int]:
        best = np.argsort(-self.q(parent), kind="stable")[:count]
        return [self.add(parent, int(token)) for token in best]

    def tree(self) -> TokenTree:
        return TokenTree(
            np.array(self.tokens, np.int32), np.array(self.parents, np.int32), drawn=self.drawn
        )


Builder = Callable[[Language, Chance], TokenTree]


def levels(draw: str, *branching: int) -> Builder:
    """Return a drafter with ``branching`` children below every node, sampled by ``draw``."""

    def build(language: Language, chance: Chance) -> TokenTree:
        twigs, level = Twigs(language, chance), [ROOT]
        for count in branching:
            level = [child for node in level for child in getattr(twigs, draw)(node, count)]
        return twigs.tree()

    return build


def pooled(*branching: int) -> Builder:
    """Return a drafter like ``levels("iid", ...)`` that merges equal draws into one node.

    The children of such a node are drawn together.
    """

    def build(language: Language, chance: Chance) -> TokenTree:
        twigs, level = Twigs(language, chance), {ROOT: 1}
        for count in branching:
            below: dict[int, int] = {}
            for node, copies in level.items():
                below |= twigs.pooled(node, count * copies)
            level = below
        return twigs.tree()

    return build


def adaptive(count: int) -> Builder:
    """Return DySpec's drafter: the next draw is where q so far makes acceptance most likely."""

    def build(language: Language, chance: Chance) -> TokenTree:
        twigs = Twigs(language, chance)
        heap = [(1.0, ROOT, language.q(()))]
        while heap and len(twigs.tokens) < count:
            value, node, rest = heap.pop(max(range(len(heap)), key=lambda i: heap[i][0]))
            twigs.note(node, Mode.SWOR)
            token = chance.draw(rest)
            child = twigs.add(node, token)
            left = rest * (np.arange(language.v) != token)
            if left.sum() > 0:
                heap.append((value * (1 - rest[token]), node, left / left.sum()))
            heap.append((value * rest[token], child, twigs.q(child)))
        return twigs.tree()

    return build


def mixed(first: str, second: str) -> Builder:
    """Return a drafter whose first and second levels are chosen in different ways."""

    def build(language: Language, chance: Chance) -> TokenTree:
        twigs = Twigs(language, chance)
        for node in getattr(twigs, first)(ROOT, 2):
            getattr(twigs, second)(node, 2)
        return twigs.tree()

    return build


def after(build: Builder, change: Callable[[TokenTree, Language], TokenTree]) -> Builder:
    """Return a drafter whose finished tree is changed by a function."""
    return lambda language, chance: change(build(language, chance), language)


def words_of(tree: TokenTree) -> dict[int, Word]:
    words: dict[int, Word] = {ROOT: ()}
    for node, (parent, token) in enumerate(zip(tree.parents.tolist(), tree.tokens.tolist())):
        words[node] = (*words[parent], token)
    return words


def drafts(build: Builder, language: Language) -> list[tuple[float, TokenTree]]:
    """Return every tree that a drafter can draw, with its probability."""
    shares: dict[object, float] = defaultdict(float)
    trees: dict[object, TokenTree] = {}
    for weight, tree in outcomes(lambda chance: build(language, chance)):
        drawn = sorted((node, d.mode.value, d.order) for node, d in tree.drawn.items())
        same = (*tree.tokens.tolist(), None, *tree.parents.tolist(), *drawn)
        shares[same] += weight
        trees[same] = tree
    return [(share, trees[same]) for same, share in shares.items()]


def emitted(rule: Rule, trees: Iterable[tuple[float, TokenTree]], language: Language) -> Law:
    """Return the distribution of the tokens that one step emits."""
    law: Law = defaultdict(float)
    for share, tree in trees:
        for weight, word in outcomes(_step(rule, tree, language)):
            law[word] += share * weight
    return law


def _step(rule: Rule, tree: TokenTree, language: Language) -> Callable[[Oracle], Word]:
    words = words_of(tree)

    def step(chance: Oracle) -> Word:
        tokens, rows = run(rule, lambda node: language.p(words[node]), tree, chance)
        assert [words[node] for node in rows] == [tuple(tokens[:i]) for i in range(len(tokens))]
        return tuple(tokens)

    return step


def distance(law: Law, language: Language) -> float:
    """Return the total variation distance to the target's distribution.

    Short outputs are extended by plain decoding.
    """
    depth = max(map(len, law))
    full: Law = defaultdict(float)

    def extend(word: Word, weight: float) -> None:
        if len(word) == depth:
            full[word] += weight
        else:
            for token, share in enumerate(language.p(word).tolist()):
                extend((*word, token), weight * share)

    for word, weight in law.items():
        extend(word, weight)
    truth = {word: likelihood(language, word) for word in product(range(language.v), repeat=depth)}
    return sum(abs(truth[word] - full[word]) for word in truth) / 2


def likelihood(language: Language, word: Word) -> float:
    return float(np.prod([language.p(word[:i])[token] for i, token in enumerate(word)]))


def expected_length(law: Law) -> float:
    return sum(weight * len(word) for word, weight in law.items())
