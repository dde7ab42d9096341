"""Rows that enter the target in the middle, made of the states of the rows that they follow."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from paradecode.core.head import Head
from paradecode.core.network import Array
from paradecode.core.request import Apply, Forward, Reply
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.exit_rows import NO_TOKENS
from paradecode.methods.draft.loop import Scoring
from paradecode.methods.draft.prompt_rows import GuessRows


@dataclass
class TransferRows(GuessRows):
    """Those that a head's ``transfers`` make.

    The verification is cut where rows enter. What runs before the last cut is scratch; the last
    part goes on from there, and makes the same of the tree's own rows as a whole forward does.
    Rows whose numbers have overflowed are 0 instead: NaN would spread to rows that do not see them.

    Args:
        total: layers of the target.
    """

    head: Head
    total: int

    def run(self, forward: Forward, tree: TokenTree) -> Scoring:
        pending, numbers = len(forward.tokens), self.numbers
        last = np.full(len(tree), pending - 1, np.int32)
        rows = TokenTree.chain(forward.tokens).extend(tree, last)
        real = len(rows) - len(numbers)
        nodes = np.repeat(np.arange(len(self.counts)), self.counts) + pending - 1
        enters = np.array(self.head.taps)[numbers] + 1  # The layer that each row enters.
        given = np.zeros((len(numbers), self.head.width), np.float32)
        hidden: dict[int, Array] = {}
        begin = 0
        for end in np.unique(enters).tolist():
            inside = enters <= begin if begin else np.zeros(len(enters), bool)
            reply = yield Forward(
                NO_TOKENS,
                tree=_first(rows, real, inside),
                given=given[inside] if begin else None,
                layers=tuple(range(begin, end)),
                logits=NO_TOKENS,
                hidden=(end - 1, *(at for at in forward.hidden if begin <= at % self.total < end)),
            )
            hidden |= reply.hidden
            states = reply.hidden[end - 1]
            given[inside] = states[real:]
            for level in set(numbers[enters == end].tolist()):
                new = (enters == end) & (numbers == level)
                network = self.head.transfers[level]
                given[new] = _sound((yield Apply(network, {"state": states[nodes[new]]})))
            begin = end
        behind = tuple(at for at in forward.hidden if at % self.total >= begin)
        layers = tuple(range(begin, self.total))
        reply = yield replace(forward, tree=tree, given=given, layers=layers, hidden=behind)
        kept = {at: hidden[at] for at in forward.hidden if at not in behind}
        return Reply(reply.logits, {**reply.hidden, **kept})


def _sound(rows: Array) -> Array:
    """Those rows whose norm is finite; the others are 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        sums = np.square(rows, dtype=np.float32).sum(axis=1, keepdims=True)
        return np.where(np.isfinite(sums), rows, 0.0)


def _first(rows: TokenTree, real: int, kept: np.ndarray) -> TokenTree:
    """The first ``real`` rows and, of those behind them, these, which no other hangs below."""
    places = np.cumsum(np.concatenate([np.ones(real, bool), kept])) - 1
    keep = np.concatenate([np.arange(real), real + np.flatnonzero(kept)])
    parents = rows.parents[keep]
    return TokenTree(
        rows.tokens[keep], np.where(parents == ROOT, ROOT, places[parents]).astype(np.int32)
    )
