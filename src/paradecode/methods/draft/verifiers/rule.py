"""What the rules of the sampling verifiers share, and how the engine runs a rule.

A rule is a pure function of the target's rows, the tree and a source of chance. The engine's chance
is counter-based noise. A test may pass one that takes every branch in turn, and so compute the law
of the output exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.errors import DecoderError, InvalidInput
from paradecode.core.noise import GOLDEN, MASK64, Purpose, mix
from paradecode.core.tree import ROOT, Drawn, Mode, TokenTree
from paradecode.methods.draft.verifiers.coupled import Verifier, coupled
from paradecode.methods.parts import declare, parameter

Row = NDArray[np.float64]
Rows = Callable[[int], Row]
"""Node (or ``ROOT``) -> float64 [V]: p, the law of the token that follows the node's path."""

sampling = partial(declare, "verifier", guarantee="distribution")
"""Declares a verifier whose outputs have the law of plain sampling."""

NOTHING = 1e-12
"""The least mass of a residual; less mass is rounding, and the old distribution stays."""


class Chance(Protocol):
    """The source of a rule's randomness; each call is a new draw."""

    def accept(self, p: float, q: float = 1.0) -> bool:
        """True with probability min(1, p / q)."""

    def draw(self, weights: Row) -> int:
        """An index with probability proportional to its weight."""


Accepted = tuple[list[int], int]
"""The nodes of the accepted path, from depth 1 on, and the token that follows them."""
Rule = Callable[[Rows, TokenTree, Chance], Accepted]


def residual(p: Row, q: Row) -> Row:
    """The distribution norm((p - q)+)."""
    rest = np.maximum(p - q, 0.0)
    mass = rest.sum()
    return rest / mass if mass > NOTHING else p


def without(q: Row, token: int) -> Row:
    """q under the condition that the token is not ``token``; zeros when nothing else is left."""
    rest = q.copy()
    rest[token] = 0.0
    mass = rest.sum()
    return rest / mass if mass > 0.0 else rest


def proposal(drawn: Drawn, node: int, tree: TokenTree, vocabulary: int) -> Row:
    """The distribution q of a node's children, after a check that q could give them."""
    q = drawn.row(vocabulary)
    tokens = tree.tokens[tree.children(node)].tolist()
    if not q[tokens].all():
        raise DecoderError(f"token tree: node {node} has a child that its q cannot give")
    if drawn.mode is Mode.SWOR and len(set(tokens)) < len(tokens):
        raise DecoderError(f"token tree: node {node} has equal children, drawn without replacement")
    return q


def run(rule: Rule, p: Rows, tree: TokenTree, chance: Chance) -> tuple[list[int], list[int]]:
    """Apply a rule; returns the tokens to append, and the node (or ``ROOT``) that each one follows.

    A rule's last token may by chance be in the tree; its row is there, so the rule goes on from it.
    """
    path, token = rule(p, tree, chance)
    tokens = [*tree.tokens[path].tolist(), token]
    after = [ROOT, *path]
    met = tree.follow(tokens)
    node = met[-1] if len(met) == len(tokens) else None
    while node is not None:
        tokens.append(chance.draw(p(node)))
        after.append(node)
        node = tree.child(node, tokens[-1])
    return tokens, after


class Noise:
    """The engine's chance: the n-th draw of one (seed, position), whatever the batch."""

    def __init__(self, base: int) -> None:
        self._base, self._draws = base, 0

    def uniform(self) -> float:
        """A number in [0, 1), with 53 bits."""
        self._draws += 1
        return (mix((self._base + self._draws * GOLDEN) & MASK64) >> 11) * 2.0**-53

    def accept(self, p: float, q: float = 1.0) -> bool:
        return self.uniform() * q < p

    def draw(self, weights: Row) -> int:
        edges = np.cumsum(weights)
        point = self.uniform() * edges[-1]
        # Rounding may put the point on the last edge: that is the last token with any weight.
        last = np.searchsorted(edges, edges[-1])
        return int(min(np.searchsorted(edges, point, side="right"), last))


class SamplingVerifier(Verifier):
    """Applies a rule with the request's noise; at temperature 0 it verifies greedily."""

    def rule(self, p: Rows, tree: TokenTree, chance: Chance) -> Accepted:
        """Accept nodes and draw the token behind them; pure except for ``chance``."""
        raise NotImplementedError

    def __call__(self, seq: TokenSequence, tree: TokenTree, reply: Reply) -> Verdict:
        sampler, logits = seq.sampler, reply.logits
        if sampler.warp.temperature == 0.0:
            return coupled(seq, tree, reply)
        known: dict[int, Row] = {}
        ends: set[int] = set()

        def p(node: int) -> Row:
            if node not in known:
                try:
                    row = sampler.processed(logits, node + 1, tree.tokens_to(node))
                except InvalidInput:  # No token may follow.
                    if node == ROOT:
                        raise
                    ends.add(node)
                    row = logits.select([node + 1])
                row.argmax()  # Raises when the row holds no numbers.
                known[node] = row.probabilities(sampler.warp)[0]
            return known[node]

        chance = Noise(sampler.noise_key(0, Purpose.ACCEPT))
        tokens, after = run(self.rule, p, tree, chance)
        # What a rule draws behind such an end is left out; all before it has its law, whatever
        # stands for p there.
        count = next((place for place, node in enumerate(after) if node in ends), len(after))
        return Verdict(tokens[:count], [node + 1 for node in after[:count]], logits)


class TopDown(SamplingVerifier):
    """A verifier that decides from the root on, one node at a time."""

    def level(self, p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
        """The child to go on from and its token, or None and the last token."""
        raise NotImplementedError

    def rule(self, p: Rows, tree: TokenTree, chance: Chance) -> Accepted:
        path: list[int] = []
        node = ROOT
        while tree.children(node):
            child, token = self.level(p(node), node, tree, chance)
            if child is None:
                return path, token
            path.append(child)
            node = child
        return path, chance.draw(p(node))


# Top-down verification of draft tokens, one after another.


def one_by_one(
    p: Row, node: int, tree: TokenTree, chance: Chance, most: int | None = None
) -> tuple[int | None, int]:
    """Test the first ``most`` children (all by default) in drawing order.

    After a refusal, p becomes the part of p that q did not cover. With draws without replacement, q
    becomes its part on the tokens that were not drawn yet.
    """
    drawn = tree.drawn.get(node)
    if drawn is None:
        return _one_hot(p, node, tree, chance)
    q = proposal(drawn, node, tree, len(p))
    for child in tree.children(node)[:most]:
        token = int(tree.tokens[child])
        if chance.accept(p[token], q[token]):
            return child, token
        p = residual(p, q)
        if drawn.mode is Mode.SWOR:
            q = without(q, token)
    return None, chance.draw(p)


def _one_hot(p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
    """Test children that a rule chose: accept each with what is left of p for it. Exact for any
    tree."""
    for child in tree.children(node):
        token = int(tree.tokens[child])
        if chance.accept(p[token]):
            return child, token
        rest = without(p, token)
        p = rest if rest.any() else p
    return None, chance.draw(p)


@sampling(
    "rejection",
    paper="Fast Inference from Transformers via Speculative Decoding",
    arxiv="2211.17192",
)
@dataclass
class Rejection(TopDown):
    """Test one draft token at each depth with p / q (also Chen et al. 2023, arXiv 2302.01318).

    Accept the token with min(1, p / q), else emit a token of norm((p - q)+). Of drawn siblings only
    the first is tested; children that a rule chose are all tested, with a one-hot q.
    """

    modes: ClassVar[tuple[Mode, ...]] = (Mode.SWOR, Mode.IID)

    def level(self, p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
        return one_by_one(p, node, tree, chance, 1)


@sampling("specinfer", paper="SpecInfer", arxiv="2305.09781")
@dataclass
class SpecInfer(TopDown):
    """Test siblings one after another, each against what the last ones left of p.

    The multi-path rule of Miao et al. 2023, for children drawn with replacement. Where they were
    drawn without it this is ``rsd``, and one-hot where a rule chose.
    """

    modes: ClassVar[tuple[Mode, ...]] = (Mode.IID, Mode.SWOR)

    def level(self, p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
        return one_by_one(p, node, tree, chance)


@sampling("rsd", paper="Recursive Speculative Decoding", arxiv="2402.14160")
@dataclass
class Rsd(SpecInfer):
    """Recursive rejection sampling: ``specinfer`` for siblings drawn without replacement."""

    modes: ClassVar[tuple[Mode, ...]] = (Mode.SWOR, Mode.IID)


@sampling("naive-tree", paper="Dynamic Delayed Tree Expansion", arxiv="2602.16994")
@dataclass
class NaiveTree(Rejection):
    """Test the first sibling with p / q, take another one when the residual happens to give it."""

    def level(self, p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
        child, token = super().level(p, node, tree, chance)
        return (tree.child(node, token) if child is None else child), token


@sampling("nss", paper="SpecInfer (naive sampling)", arxiv="2305.09781")
@dataclass
class NaiveSampling(TopDown):
    """Draw from p, go on if the token was drafted. Needs no q, and is exact for any tree."""

    def level(self, p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
        token = chance.draw(p)
        return tree.child(node, token), token


# SpecTr's sequential selection among k drafts.

HALVINGS = 24
"""How often the interval that holds rho is halved. A rho that is a little too large is exact,
too."""


@sampling("spectr", paper="SpecTr", arxiv="2310.15141")
@dataclass
class SpecTr(TopDown):
    """Test k draws with replacement by approximate optimal transport (Sun et al. 2023).

    K-SEQ: accept a draw with min(1, p / (rho q)), rho the smallest that keeps the law. With
    beta = sum min(p / rho, q) a draw is accepted, so one of k is with 1 - (1 - beta)^k; the
    residual is what p has left when those accepted are taken out. Children that were not drawn
    with replacement are verified as ``rsd`` does.
    """

    modes: ClassVar[tuple[Mode, ...]] = (Mode.IID,)

    def level(self, p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
        if tree.mode(node) is not Mode.IID:
            return one_by_one(p, node, tree, chance)
        children = tree.children(node)
        k = len(children)
        q = proposal(tree.drawn[node], node, tree, len(p))
        low, rho = 1.0, float(k)
        if k > 1:
            for _ in range(HALVINGS):
                middle = (low + rho) / 2
                beta = np.minimum(p / middle, q).sum()
                if 1 - (1 - beta) ** k > middle * beta:
                    low = middle
                else:
                    rho = middle
        for child in children:
            token = int(tree.tokens[child])
            if chance.accept(p[token], rho * q[token]):
                return child, token
        taken = np.minimum(p / rho, q)
        beta = taken.sum()
        if beta > 0.0:
            rest = np.maximum(p - taken * ((1 - (1 - beta) ** k) / beta), 0.0)
            p = rest if rest.sum() > NOTHING else p
        return None, chance.draw(p)


# Typical acceptance: tokens that the target finds plausible stay.


@declare(
    "verifier",
    "typical",
    guarantee="lossy",
    paper="Medusa",
    arxiv="2401.10774",
    names={"posterior_threshold": "epsilon", "posterior_alpha": "delta", "alpha": "delta"},
)
@dataclass
class Typical(SamplingVerifier):
    """Accept what the target finds plausible, given its own doubt; changes the law of the output.

    A token is accepted when p > min(epsilon, delta * exp(-entropy of p)) (Cai et al. 2024). The
    longest accepted path wins, of equally long ones the likelier. The token after it is drawn
    from p.
    """

    epsilon: float = parameter(0.09, 0.0, 1.0, "a token more probable than this is accepted")
    delta: float = parameter(0.3, 0.0, 1.0, "so is one above this times exp(-entropy)")

    def rule(self, p: Rows, tree: TokenTree, chance: Chance) -> Accepted:
        best: tuple[int, float, int] = (0, 0.0, ROOT)
        alive: dict[int, tuple[int, float]] = {ROOT: (0, 0.0)}
        for node, (parent, token) in enumerate(
            zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)
        ):
            if parent in alive and p(parent)[token] > self.threshold(p(parent)):
                depth, log_p = alive[parent]
                alive[node] = (depth + 1, log_p + float(np.log(p(parent)[token])))
                best = max(best, (*alive[node], node), key=lambda entry: entry[:2])
        return tree.path(best[2]), chance.draw(p(best[2]))

    def threshold(self, p: Row) -> float:
        """The probability that a token must exceed."""
        entropy = -float((p * np.log(p + 1e-5)).sum())
        return min(self.epsilon, self.delta * float(np.exp(-entropy)))


# Verification of whole paths: block verification of chains, traversal verification of trees.


def verify_block(p: Rows, tree: TokenTree, chance: Chance) -> Accepted:
    """Sun et al. 2024 (arXiv 2403.10444): the longest prefix of a chain that passes its test.

    A prefix of weight w_i = min(1, w_(i-1) p / q) passes with h_i = S_i / (S_i + 1 - w_i), where
    S_i is the mass of (w_i p - q)+ at its end, and the whole chain with its weight. Every prefix
    has its own test, so a likely token may make good for an unlikely one before it. Trees that are
    no chains are verified by :func:`verify_traversal`, which does the same on chains.
    """
    if not tree.is_chain or any(drawn.order for drawn in tree.drawn.values()):
        return verify_traversal(p, tree, chance)
    count, tokens = len(tree), tree.tokens.tolist()
    weights = [1.0]
    for node, token in enumerate(tokens):
        ratio = p(node - 1)[token] / _chance_of(tree, node - 1, token)
        weights.append(min(1.0, weights[-1] * ratio))
    if chance.accept(weights[count]):
        return list(range(count)), chance.draw(p(count - 1))
    for kept in range(count - 1, -1, -1):
        row = p(kept - 1)
        q = _proposal(tree, kept - 1, tokens[kept], len(row))
        rest = np.maximum(weights[kept] * row - q, 0.0)
        mass = rest.sum()
        if kept == 0 or chance.accept(*_pass(mass, weights[kept])):
            return list(range(kept)), chance.draw(rest if mass > NOTHING else row)
    raise AssertionError("the empty prefix always passes")


def verify_traversal(p: Rows, tree: TokenTree, chance: Chance) -> Accepted:
    """Weng et al. 2025 (arXiv 2505.12398): test leaves first, each with the weight of its path.

    A leaf that fails is deleted, and its parent's p, q and weight become what the failure leaves of
    them; then the next leaf along the first remaining children is tested. Prefixes that a top-down
    rule has thrown away by then are still in the game.
    """
    children, origin = _copies(tree)
    weight: dict[int, float] = {ROOT: 1.0}
    rows: dict[int, Row] = {}
    proposals: dict[int, Row] = {}

    def row(node: int) -> Row:
        if node not in rows:
            rows[node] = p(origin[node])
        return rows[node]

    def q(node: int) -> Row:
        token = int(tree.tokens[origin[children[node][0]]])
        if tree.mode(node) is Mode.DET:
            return _proposal(tree, node, token, len(row(node)))
        if node not in proposals:
            proposals[node] = _proposal(tree, node, token, len(row(node)))
        return proposals[node]

    while True:
        path = [ROOT]
        while children[path[-1]]:
            node = path[-1]
            child = children[node][0]
            token = int(tree.tokens[origin[child]])
            if child not in weight:
                given = proposals.get(node)
                share = _chance_of(tree, node, token) if given is None else given[token]
                weight[child] = min(1.0, weight[node] * row(node)[token] / share)
            path.append(child)
        leaf = path[-1]
        if leaf == ROOT or chance.accept(weight[leaf]):
            return [origin[node] for node in path[1:]], chance.draw(row(leaf))
        node = path[-2]
        rest = np.maximum(weight[node] * row(node) - q(node), 0.0)
        mass = rest.sum()
        passed, tested = _pass(mass, weight[node])
        if mass > NOTHING:
            rows[node] = rest / mass
        if tree.mode(node) is Mode.SWOR:
            proposals[node] = without(q(node), int(tree.tokens[origin[leaf]]))
        weight[node] = passed / tested
        children[node].pop(0)


def _pass(mass: float, weight: float) -> tuple[float, float]:
    """Numerator and denominator of h_i = S_i / (S_i + 1 - w_i)."""
    total = mass + 1.0 - weight
    return (mass, total) if total > 0.0 else (1.0, 1.0)


def _chance_of(tree: TokenTree, node: int, token: int) -> float:
    """Probability q of a node's first child; 1 where a rule has chosen it."""
    drawn = tree.drawn.get(node)
    if drawn is None:
        return 1.0
    q = drawn.of(token)
    if q == 0.0:
        raise DecoderError(f"token tree: node {node} has a child that its q cannot give")
    return q


def _proposal(tree: TokenTree, node: int, token: int, vocabulary: int) -> Row:
    """The distribution q of a node's children; one-hot at ``token`` where a rule has chosen."""
    drawn = tree.drawn.get(node)
    if drawn is not None:
        return proposal(drawn, node, tree, vocabulary)
    q = np.zeros(vocabulary)
    q[token] = 1.0
    return q


def _copies(tree: TokenTree) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Children of each node, and the node that each one stands for.

    Equal draws that share a node are separated: the first has the node's children, the others none.
    """
    origin = {node: node for node in range(ROOT, len(tree))}
    children: dict[int, list[int]] = {}
    for node in range(ROOT, len(tree)):
        children[node] = []
        for child in tree.children(node):
            copy = child
            if child in children[node]:
                copy = len(origin) - 1
                origin[copy] = child
                children[copy] = []
            children[node].append(copy)
    return children, origin


@sampling("block", paper="Block Verification Accelerates Speculative Decoding", arxiv="2403.10444")
@dataclass
class BlockVerifier(SamplingVerifier):
    """Accept the longest prefix of a chain, judged as a whole."""

    modes: ClassVar[tuple[Mode, ...]] = (Mode.SWOR, Mode.IID)

    def rule(self, p: Rows, tree: TokenTree, chance: Chance) -> Accepted:
        return verify_block(p, tree, chance)


@sampling(
    "traversal", paper="Traversal Verification for Speculative Tree Decoding", arxiv="2505.12398"
)
@dataclass
class Traversal(SamplingVerifier):
    """Test leaves first: block verification of trees."""

    modes: ClassVar[tuple[Mode, ...]] = (Mode.SWOR, Mode.IID)

    def rule(self, p: Rows, tree: TokenTree, chance: Chance) -> Accepted:
        return verify_traversal(p, tree, chance)
