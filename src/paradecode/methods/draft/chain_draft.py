"""A chain that a second model drafts one forward at a time; schedules choose when."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import DRAFT, Forward, Reply, TokenSequence, Verdict
from paradecode.core.logits import Logits
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.candidates import candidates

Correction = tuple[int, int]
"""(r, c): the target accepts r tokens of the chain and then emits c."""


@dataclass
class ChainDraft:
    """The chain that is drafted behind the last committed token.

    Tokens of the chain that the draft model's cache lacks run in its next forward, like pending
    committed tokens: the last token, and after a commit everything that is left of the chain.

    Attributes:
        tokens, own: the chain in the target's ids and in the draft model's.
        rows: the logits that each token of the chain was chosen from.
        held: tokens of the chain that the draft model's cache holds.
        ended: whether the draft model cannot continue the chain.
    """

    tokens: list[int] = field(default_factory=list)
    own: list[int] = field(default_factory=list)
    rows: list[Logits] = field(default_factory=list)
    held: int = 0
    ended: bool = False

    def commit(self, seq: TokenSequence, verdict: Verdict) -> None:
        """Commit a verdict; if the chain begins with its tokens, keep the rest of the chain."""
        count = len(verdict.tokens)
        same = self.tokens[:count] == verdict.tokens
        behind = slice(count, None) if same else slice(0)
        self.tokens, self.own = self.tokens[behind], self.own[behind]
        self.rows, self.held, self.ended = self.rows[behind], 0, False
        seq.commit(verdict)

    def fits(self, seq: TokenSequence) -> bool:
        """Whether the draft model has room for the chain."""
        return seq.room_for(DRAFT) > len(self.tokens)

    def forward(self, seq: TokenSequence) -> Forward:
        """The draft model's forward whose last row predicts the token behind the chain."""
        pending = seq.pending_for(DRAFT)
        tree = TokenTree.chain(self.own[self.held :])
        under = np.full(len(tree), self.held - 1, np.int32)  # -1: the last committed token.
        # Without a chain the last row is what a forward returns anyway, and prompts may be cut.
        last = np.array([len(pending) + len(tree) - 1], np.int32) if self.tokens else None
        self.held = len(self.own)
        return Forward(pending, tree=tree, under=under, logits=last, model=DRAFT)

    def add(self, seq: TokenSequence, logits: Logits, path: list[int]) -> bool:
        """Append the likeliest token behind ``path``, which ends with the chain (in the target's
        ids). Returns False if the target has no such token."""
        vocabulary = seq.about(DRAFT).vocabulary
        own, ids, chance = candidates(seq, logits, [path], 1, vocabulary)
        self.ended = bool(chance[0, 0] <= 0)
        if self.ended:
            return False
        self.rows.append(logits)
        self.own.append(int(own[0, 0]))
        self.tokens.append(int(ids[0, 0]))
        return True

    def extend(self, seq: TokenSequence, count: int) -> Generator[Forward, Reply, None]:
        """Draft until the chain has ``count`` tokens, or as many as there is room for."""
        count = min(count, seq.scratch)
        while not self.ended and len(self.tokens) < count and self.fits(seq):
            reply = yield self.forward(seq)
            if not self.add(seq, reply.logits, self.tokens):
                return

    def guesses(
        self, seq: TokenSequence, width: int
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """The draft model's candidates at each place of the chain, in the form of
        :func:`candidates`: the target's ids and their probabilities, [len(tokens), width]."""
        vocabulary = seq.about(DRAFT).vocabulary
        found = [
            candidates(seq, row, [self.tokens[:place]], width, vocabulary)
            for place, row in enumerate(self.rows)
        ]
        ids, chances = ([each[part] for each in found] for part in (1, 2))
        return np.concatenate(ids), np.concatenate(chances)

    def ahead(self, seq: TokenSequence, corrections: Iterable[Correction]) -> Forward:
        """The draft model's forward over the rows that its cache lacks, and one row behind each
        correction. Logits come from the latter."""
        pending, chain = seq.pending_for(DRAFT), self.own[self.held :]
        tokens, parents = list(chain), [*range(ROOT, len(chain) - 1)]
        under = [self.held - 1] * len(chain)
        for place, token in corrections:
            own = own_id(seq, token)
            assert own is not None
            tokens.append(own)
            parents.append(max(place - 1 - self.held, ROOT))
            under.append(place - 1)
        tree = TokenTree(np.array(tokens, np.int32), np.array(parents, np.int32))
        rows = len(pending) + np.arange(len(chain), len(tree), dtype=np.int32)
        below = np.array(under, np.int32)  # -1: the last committed token.
        self.held = len(self.own)
        return Forward(pending, tree=tree, under=below, logits=rows, model=DRAFT)

    def behind(
        self, seq: TokenSequence, corrections: list[Correction], count: int
    ) -> Generator[Forward, Reply, list[ChainDraft]]:
        """A chain of ``count`` tokens behind each correction, or fewer where there is no room.
        All chains grow together, one token in each forward."""
        found, live = [ChainDraft() for _ in corrections], list(range(len(corrections)))
        paths = [[*self.tokens[:place], token] for place, token in corrections]
        forward, used = self.ahead(seq, corrections), len(self.own) + len(corrections)
        above = np.arange(len(self.own), used, dtype=np.int32)
        room = min(seq.scratch, seq.room_for(DRAFT))
        for _ in range(count):
            logits = (yield forward).logits
            live = [
                one for row, one in enumerate(live)
                if found[one].add(seq, logits.select([row]), [*paths[one], *found[one].tokens])
            ]  # fmt: skip
            if not live or used + len(live) > room:
                break
            tokens = np.array([found[one].own[-1] for one in live], np.int32)
            rows = np.arange(len(live), dtype=np.int32)
            forward = Forward(
                tokens[:0], tree=TokenTree.siblings(tokens), under=above[live], logits=rows,
                model=DRAFT,
            )  # fmt: skip
            above[live] = used + rows
            used += len(live)
        return found

    def tree(self, depth: int) -> TokenTree:
        """The chain as a tree, cut to ``depth`` tokens."""
        return TokenTree.chain(self.tokens[: max(depth, 0)])


def own_id(seq: TokenSequence, token: int) -> int | None:
    """The draft model's id of a target token, or None if it does not have it as one token."""
    vocabulary = seq.about(DRAFT).vocabulary
    if vocabulary is None:
        return token
    pieces = vocabulary.translate(np.array([token]))
    return int(pieces[0]) if len(pieces) == 1 else None
