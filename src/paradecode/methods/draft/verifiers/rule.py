"""The base classes of sampling verifiers, and the functions that run their acceptance rules.

A rule is a pure function of the target's distributions, the tree and a source of random numbers.
The engine's random numbers depend only on seed and position. A test may pass a source that takes
every branch in turn, and so compute the exact distribution of the output.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

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
"""Function from a node (or ``ROOT``) to p, the next-token distribution after it: float64 [V]."""

sampling = partial(declare, "verifier", guarantee="distribution")
"""Declare a verifier whose outputs have the same distribution as plain sampling."""

NOTHING = 1e-12
"""The least mass of a residual. A smaller mass is a rounding error, and p is used unchanged."""


class Chance(Protocol):
    """Interface: the source of a rule's random numbers; each call draws a new one."""

    def accept(self, p: float, q: float = 1.0) -> bool:
        """Return True with probability min(1, p / q)."""

    def draw(self, weights: Row) -> int:
        """Return an index with probability proportional to its weight."""


Accepted = tuple[list[int], int]
"""The accepted nodes from the root's child on, and the token that follows them."""
Rule = Callable[[Rows, TokenTree, Chance], Accepted]


def residual(p: Row, q: Row) -> Row:
    """Return the distribution norm((p - q)+), or p if nothing is left."""
    rest = np.maximum(p - q, 0.0)
    mass = rest.sum()
    return rest / mass if mass > NOTHING else p


def without(q: Row, token: int) -> Row:
    """Return q under the condition that the token is not ``token``; zeros if nothing is left."""
    rest = q.copy()
    rest[token] = 0.0
    mass = rest.sum()
    return rest / mass if mass > 0.0 else rest


def proposal(drawn: Drawn, node: int, tree: TokenTree, vocabulary: int) -> Row:
    """Return the distribution q from which a node's children were drawn.

    Raises:
        DecoderError: if q cannot have given the node's children.
    """
    q = drawn.row(vocabulary)
    tokens = tree.tokens[tree.children(node)].tolist()
    if not q[tokens].all():
        raise DecoderError(f"token tree: node {node} has a child that its q cannot give")
    if drawn.mode is Mode.SWOR and len(set(tokens)) < len(tokens):
        raise DecoderError(f"token tree: node {node} has equal children, drawn without replacement")
    return q


def run(rule: Rule, p: Rows, tree: TokenTree, chance: Chance) -> tuple[list[int], list[int]]:
    """Apply a rule; return the tokens to append, and the node (or ``ROOT``) that each follows.

    A rule's last token may happen to be a node of the tree. The distribution after that node is
    known, so another token is drawn from it.
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
    """The engine's source of random numbers. Its n-th draw depends only on seed and position."""

    def __init__(self, base: int) -> None:
        self._base, self._draws = base, 0

    def uniform(self) -> float:
        """Return a number in [0, 1) with 53 random bits."""
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
    """Applies a rule with the request's random numbers; at temperature 0 it verifies greedily."""

    def rule(self, p: Rows, tree: TokenTree, chance: Chance) -> Accepted:
        """Accept nodes and draw the token after them; a pure function except for ``chance``."""
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
                row.argmax()  # Raises if the row is NaN.
                known[node] = row.probabilities(sampler.warp)[0]
            return known[node]

        chance = Noise(sampler.noise_key(0, Purpose.ACCEPT))
        tokens, after = run(self.rule, p, tree, chance)
        # Tokens drawn after such an end are dropped. This does not change the distribution of the
        # tokens before it.
        count = next((place for place, node in enumerate(after) if node in ends), len(after))
        return Verdict(tokens[:count], [node + 1 for node in after[:count]], logits)


class TopDown(SamplingVerifier):
    """A verifier that decides from the root on, one node at a time."""

    def level(self, p: Row, node: int, tree: TokenTree, chance: Chance) -> tuple[int | None, int]:
        """Return the accepted child and its token, or None and the last token."""
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


# Typical acceptance: tokens that are plausible under the target are accepted.


@declare(
    "verifier",
    "typical",
    guarantee="lossy",
    paper="Medusa",
    arxiv="2401.10774",
    names={"posterior_threshold": "epsilon", "posterior_alpha": "delta", "alpha": "delta"},
)
class Typical(SamplingVerifier):
    """Accept what the target finds plausible for its entropy; changes the output's distribution.

    A token is accepted if p > min(epsilon, delta * exp(-entropy of p)) (Cai et al. 2024). The
    longest accepted path is taken; among equally long paths the most probable one. The token after
    it is drawn from p.
    """

    epsilon: float = parameter(0.09, 0.0, 1.0, "a token more probable than this is accepted")
    delta: float = parameter(0.3, 0.0, 1.0, "so is a token above this times exp(-entropy)")

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
        """Return the probability that a token must exceed to be accepted."""
        entropy = -float((p * np.log(p + 1e-5)).sum())
        return min(self.epsilon, self.delta * float(np.exp(-entropy)))
