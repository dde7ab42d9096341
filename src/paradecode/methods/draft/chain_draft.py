"""A chain that a second model drafts one forward at a time, so that a schedule can place them."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.logits import Logits
from paradecode.core.request import DRAFT, Forward, Reply
from paradecode.core.sequence import Sequence
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.candidates import candidates

Correction = tuple[int, int]
"""(r, c): the target accepts r tokens of the chain, then says c."""


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
        tree = TokenTree.siblings(np.array(self.own[-1:], np.int32))
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

    def guesses(self, seq: Sequence, width: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """What the draft model expected at each place of the chain, as :func:`candidates` says it:
        the target's ids and how likely each is, [len(tokens), width]."""
        vocabulary = seq.about(DRAFT).vocabulary
        found = [
            candidates(seq, row, [self.tokens[:place]], width, vocabulary)
            for place, row in enumerate(self.rows)
        ]
        ids, chances = ([each[part] for each in found] for part in (1, 2))
        return np.concatenate(ids), np.concatenate(chances)

    def ahead(self, seq: Sequence, corrections: Iterable[Correction]) -> Forward:
        """The row of the chain's last token, then one behind each correction, whose logits come."""
        pending, last = seq.pending_for(DRAFT), len(self.own) - 1
        tokens, parents, under = [self.own[-1]], [ROOT], [last - 1]
        for place, token in corrections:
            own = own_id(seq, token)
            assert own is not None
            tokens.append(own)
            parents.append(0 if place == len(self.own) else ROOT)
            under.append(place - 1)
        tree = TokenTree(np.array(tokens, np.int32), np.array(parents, np.int32))
        rows = len(pending) + np.arange(1, len(tree), dtype=np.int32)
        below = np.array(under, np.int32)  # -1: the last committed token.
        return Forward(pending, tree=tree, under=below, logits=rows, model=DRAFT)

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
