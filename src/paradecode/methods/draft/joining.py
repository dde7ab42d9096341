"""One draft made of several: their trie, and what a verification of it says about each of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paradecode.core.request import Reply
from paradecode.core.sequence import Verdict
from paradecode.core.tree import EMPTY, ROOT, TokenTree


def merge(trees: Sequence[TokenTree]) -> TokenTree:
    """One trie of all drafts: nodes with equal tokens under equal parents become one.

    Drafters that agree are more right together than the best of them, so a node that several
    propose gets 1 - (1 - a)(1 - b): what it would be if they erred independently. They do not
    quite, and children of one parent may now add up to more than certainty; such a family is scaled
    down to 1. What remains of the optimism is for the budget, which compares promises with results.

    A tree merged with an empty one is itself. What was drawn is forgotten: siblings of different
    origins can only be verified as they stand.
    """
    trees = [tree for tree in trees if len(tree)]
    if len(trees) < 2:
        return trees[0] if trees else EMPTY
    nodes: dict[tuple[int, int], int] = {}
    estimates: list[float] = []
    for tree in trees:
        place = {ROOT: ROOT}
        proposed: set[int] = set()
        rows = zip(
            tree.parents.tolist(), tree.tokens.tolist(), tree.estimates.tolist(), strict=True
        )
        for node, (parent, token, estimate) in enumerate(rows):
            path = (place[parent], token)
            known = nodes.setdefault(path, len(nodes))
            place[node] = known
            if known == len(estimates):
                estimates.append(estimate)
            elif known not in proposed:  # A drafter that says a thing twice says it once.
                estimates[known] = 1.0 - (1.0 - estimates[known]) * (1.0 - estimate)
            proposed.add(known)
    parents = np.array([parent for parent, _ in nodes], np.int32)
    tokens = np.array([token for _, token in nodes], np.int32)
    chances = np.array(estimates, np.float32)
    family = np.bincount(parents + 1, chances, len(nodes) + 1)[parents + 1]
    return TokenTree(tokens, parents, (chances / np.maximum(family, 1.0)).astype(np.float32))


def share(
    draft: TokenTree, tree: TokenTree, reply: Reply, verdict: Verdict
) -> tuple[TokenTree, Reply, Verdict]:
    """What a verification of ``tree`` says about one drafter's part of it.

    The nodes of ``tree`` that are in ``draft``, their rows, and the verdict as it would have been
    for them alone: up to the first token that they do not contain.
    """
    theirs = {ROOT: ROOT}
    for node, (parent, token) in enumerate(
        zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)
    ):
        if parent in theirs:
            match = draft.child(theirs[parent], token)
            if match is not None:
                theirs[node] = match
    nodes = [node for node in theirs if node != ROOT]
    number = {ROOT: ROOT, **{node: index for index, node in enumerate(nodes)}}
    keep = np.zeros(len(tree), bool)
    keep[nodes] = True
    rows: list[int] = []
    for row in verdict.rows:
        if row - 1 not in number:
            break
        rows.append(number[row - 1] + 1)
    logits = reply.logits.select([0, *(node + 1 for node in nodes)])
    hidden = {}
    for layer, states in reply.hidden.items():
        first = len(states) - len(tree)  # Rows of tokens come before those of nodes.
        hidden[layer] = states[[*range(first), *(first + node for node in nodes)]]
    return (
        tree.select(keep),
        Reply(logits, hidden),
        Verdict(verdict.tokens[: len(rows)], rows, logits),
    )
