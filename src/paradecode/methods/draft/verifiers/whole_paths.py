"""Verify whole paths: block verification of chains, traversal verification of trees."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from paradecode.core.errors import DecoderError
from paradecode.core.tree import ROOT, Mode, TokenTree
from paradecode.methods.draft.verifiers.rule import (
    NOTHING,
    Accepted,
    Chance,
    Row,
    Rows,
    SamplingVerifier,
    proposal,
    sampling,
    without,
)


def verify_block(p: Rows, tree: TokenTree, chance: Chance) -> Accepted:
    """Accept the longest prefix of a chain that passes its test (Sun et al. 2024, 2403.10444).

    A prefix of weight w_i = min(1, w_(i-1) p / q) passes with probability h_i = S_i / (S_i + 1 -
    w_i), where S_i is the mass of (w_i p - q)+ at its end. The whole chain passes with probability
    equal to its weight. Every prefix has its own test, so a probable token may compensate for an
    improbable one before it.

    Trees that are not chains are verified by :func:`verify_traversal`, which does the same on
    chains.
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
    """Test leaves first, each with the weight of its path (Weng et al. 2025, arXiv 2505.12398).

    A leaf that fails is deleted, and p, q and the weight of its parent become what remains after
    the failure. Then the next leaf along the first remaining children is tested. Prefixes that a
    top-down rule would have rejected by then can still be accepted.
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
    """Return numerator and denominator of h_i = S_i / (S_i + 1 - w_i)."""
    total = mass + 1.0 - weight
    return (mass, total) if total > 0.0 else (1.0, 1.0)


def _chance_of(tree: TokenTree, node: int, token: int) -> float:
    """Return the probability q of a node's first child; 1 if the child was not sampled."""
    drawn = tree.drawn.get(node)
    if drawn is None:
        return 1.0
    q = drawn.of(token)
    if q == 0.0:
        raise DecoderError(f"token tree: node {node} has a child that its q cannot give")
    return q


def _proposal(tree: TokenTree, node: int, token: int, vocabulary: int) -> Row:
    """Return the distribution q of a node's children; one-hot if they were not sampled."""
    drawn = tree.drawn.get(node)
    if drawn is not None:
        return proposal(drawn, node, tree, vocabulary)
    q = np.zeros(vocabulary)
    q[token] = 1.0
    return q


def _copies(tree: TokenTree) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Return the children of each node, and the tree's own node for each of these nodes.

    Equal draws that share a node become separate nodes. The first of them has the node's children,
    the others have none.
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
class BlockVerifier(SamplingVerifier):
    """Accept the longest prefix of a chain that passes a test of the prefix as a whole."""

    modes: ClassVar[tuple[Mode, ...]] = (Mode.SWOR, Mode.IID)

    def rule(self, p: Rows, tree: TokenTree, chance: Chance) -> Accepted:
        return verify_block(p, tree, chance)


@sampling(
    "traversal", paper="Traversal Verification for Speculative Tree Decoding", arxiv="2505.12398"
)
class Traversal(SamplingVerifier):
    """Test leaves before their parents: block verification of trees."""

    modes: ClassVar[tuple[Mode, ...]] = (Mode.SWOR, Mode.IID)

    def rule(self, p: Rows, tree: TokenTree, chance: Chance) -> Accepted:
        return verify_traversal(p, tree, chance)
