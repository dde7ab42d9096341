"""The result that a verification of a joined draft has for one part of it."""

from __future__ import annotations

import numpy as np

from paradecode.core.decoder import Reply, Verdict
from paradecode.core.tree import ROOT, TokenTree


def share(
    draft: TokenTree, tree: TokenTree, reply: Reply, verdict: Verdict
) -> tuple[TokenTree, Reply, Verdict]:
    """The result that a verification of ``tree`` has for one drafter's ``draft``.

    Returns the nodes of ``tree`` that are in ``draft``, their rows, and the verdict that they would
    have got alone: it goes up to the first token that they do not contain.
    """
    if tree.is_chain and draft.is_chain and np.array_equal(tree.tokens, draft.tokens[: len(tree)]):
        return tree.determined(), reply, verdict  # All of it is that drafter's, as it often is.
    nodes = [node for node in tree.locate(draft.child) if node != ROOT]
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
