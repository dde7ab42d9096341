"""A chain that a second model drafts one forward at a time, so that a schedule can place them."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from paradecode.core.logits import Logits
from paradecode.core.request import DRAFT, Forward, Reply
from paradecode.core.sequence import Sequence
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.drafters.tree_draft import candidates, siblings


@dataclass
class ChainDraft:
    """The draft behind the last committed token.

    The draft model's cache holds all of the chain but its last token, which comes with the next
    forward, as committed tokens do that are still pending.

    Attributes:
        tokens, own: the chain in the target's ids and in the draft model's.
        rows: the logits that each token of the chain was chosen from.
    """

    tokens: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    rows: list[Logits] = field(default_factory=list)

    def drop(self) -> None:
        self.tokens, self.own, self.rows = [], [], []

    def fits(self, seq: Sequence) -> bool:
        """Whether the draft model has room for the last token of the chain."""
        return seq.room_for(DRAFT) > len(self.tokens)

    def forward(self, seq: Sequence) -> Forward:
        """The forward whose last row tells what follows the chain."""
        pending = seq.pending_for(DRAFT)
        tree = siblings(np.array(self.own[-1:], np.int32))
        under = np.array([len(self.own) - 2] * len(tree), np.int32)  # -1: the last committed token.
        # Without a chain the last row is what a forward returns anyway, and prompts may be cut.
        last = np.array([len(pending)], np.int32) if self.tokens else None
        return Forward(pending, tree=tree, under=under, logits=last, model=DRAFT)

    def guess(self, seq: Sequence, logits: Logits) -> tuple[int, int] | None:
        """What follows the chain: the token in the draft's ids and in the target's."""
        vocabulary = seq.about(DRAFT).vocabulary
        own, ids, chance = candidates(seq, logits, [self.tokens], 1, vocabulary)
        return (int(own[0, 0]), int(ids[0, 0])) if chance[0, 0] > 0 else None

    def extend(
        self, seq: Sequence, count: int, known: Logits | None = None
    ) -> Generator[Forward, Reply, None]:
        """Draft until the chain has ``count`` tokens.

        Args:
            known: what follows the chain, if that was computed before.
        """
        while len(self.tokens) < count and self.fits(seq):
            if known is None:
                reply = yield self.forward(seq)
                known = reply.logits
            guess = self.guess(seq, known)
            if guess is None:
                return
            self.rows.append(known)
            self.own.append(guess[0])
            self.tokens.append(guess[1])
            known = None

    def tree(self, depth: int) -> TokenTree:
        """The chain, at most ``depth`` tokens of it."""
        return TokenTree.chain(self.tokens[: max(depth, 0)])


def own_id(seq: Sequence, token: int) -> int | None:
    """A target token in the draft model's ids, if it has it as one token."""
    vocabulary = seq.about(DRAFT).vocabulary
    if vocabulary is None:
        return token
    pieces = vocabulary.translate(np.array([token]))
    return int(pieces[0]) if len(pieces) == 1 else None


def row_of(index: int) -> int:
    """The tentative row of the chain's token ``index``; before the first it is the root."""
    return index if index >= 0 else ROOT
