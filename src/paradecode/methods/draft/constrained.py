"""Draft under a constraint: drop forbidden tokens before the verification, and add forced ones."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from paradecode.core.constraint import Matcher
from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.tree import ROOT, TokenTree
from paradecode.core.tree_builder import merge
from paradecode.methods.draft.acceptance import Odds


def share(
    draft: TokenTree, tree: TokenTree, reply: Reply, verdict: Verdict
) -> tuple[TokenTree, Reply, Verdict]:
    """Return the part of a verification that concerns one drafter's draft.

    The results are the nodes of ``tree`` that are also in ``draft``, their rows of the reply, and
    the verdict that these nodes alone would have got. That verdict ends with the first token that
    ``draft`` does not contain.
    """
    if tree.is_chain and draft.is_chain and np.array_equal(tree.tokens, draft.tokens[: len(tree)]):
        return tree.determined(), reply, verdict  # The drafter proposed all of it.
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
        first = len(states) - len(tree)  # Rows of committed tokens come before those of nodes.
        hidden[layer] = states[[*range(first), *(first + node for node in nodes)]]
    return (
        tree.select(keep),
        Reply(logits, hidden),
        Verdict(verdict.tokens[: len(rows)], rows, logits),
    )


MOST_FORCED = 32
"""The largest number of forced tokens in one draft."""


@dataclass
class ForcedTokens:
    """Adds the tokens that a constraint forces to a drafter's proposal.

    If the grammar allows only one text (the keys of an object, the rest of a choice), the tokens of
    that text come before the drafter's tokens. They are also appended after a drafted chain. Forced
    tokens are verified like any draft, so the output does not depend on them: the model may still
    spell the text with other tokens.
    """

    _odds: Odds = field(default_factory=lambda: Odds((0.97,)), repr=False)
    _ahead: list[int] = field(default_factory=list, repr=False)
    _draft: TokenTree | None = None

    def join(self, seq: TokenSequence, draft: TokenTree) -> TokenTree:
        """Return the draft without forbidden tokens and with forced ones."""
        matcher = seq.sampler.matcher
        self._ahead, self._draft = [], None
        if matcher is None:
            return draft
        tree, room, sure = allowed(draft, matcher), seq.room - 1, self._odds.of(0)
        self._ahead = matcher.forced((), min(room, MOST_FORCED))
        joined = merge([TokenTree.chain(self._ahead, sure), tree])
        if joined.is_chain and not joined.sampled:
            path = joined.tokens.tolist()
            more = matcher.forced(path, min(room, MOST_FORCED) - len(path))
            if more:
                chances = [*joined.estimates.tolist(), *[sure] * len(more)]
                joined = TokenTree.chain([*path, *more], chances)
        if len(joined) > len(tree):
            self._draft = draft
        return joined

    def observe(
        self, tree: TokenTree, reply: Reply, verdict: Verdict, everything: bool
    ) -> tuple[TokenTree, Reply, Verdict]:
        """Learn from a verification of the tree that :meth:`join` returned.

        Args:
            everything: True if the drafter wants all rows, also the rows of nodes that it did not
                propose.

        Returns:
            Tree, reply and verdict for the drafter: restricted to its own nodes, or complete if
                ``everything``.
        """
        chain = self._ahead[: len(tree)]
        right = 0
        while right < len(chain) and verdict.tokens[right : right + 1] == chain[right : right + 1]:
            right += 1
        if chain:
            self._odds.update(0, right, min(right + 1, len(chain)))
        if self._draft is None or everything:
            return tree, reply, verdict
        return share(self._draft, tree, reply, verdict)


def allowed(tree: TokenTree, matcher: Matcher) -> TokenTree:
    """Return the nodes that the constraint allows; a sampled tree is returned unchanged.

    In a sampled tree, a verifier that tests p / q gives a forbidden node p = 0 and rejects it.
    Removing the node would make the tree depend on the sampled tokens, and bias the nodes after it.
    """
    if tree.sampled or len(tree) == 0:
        return tree
    keep = np.zeros(len(tree), bool)
    paths: dict[int, tuple[int, ...]] = {ROOT: ()}
    for node, (parent, token) in enumerate(
        zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)
    ):
        if parent in paths and matcher.allows(paths[parent], token):
            keep[node] = True
            path = (*paths[parent], token)
            if matcher.possible(path) == len(path):  # Nothing may follow an end-of-text token.
                paths[node] = path
    return tree if keep.all() else tree.select(keep)
