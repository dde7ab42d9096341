"""PEARL and Mirror-SD: the draft model goes on while the target verifies."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import DRAFT, Forward, Overlap, Reply, Steps, TokenSequence, Verdict
from paradecode.core.logits import Logits
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.candidates import candidates
from paradecode.methods.draft.loop import MAX_DRAFT
from paradecode.methods.draft.verifiers import coupled
from paradecode.methods.parts import choice, method, parameter

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


@method(
    "pearl",
    schedule=True,
    paper="PEARL",
    arxiv="2408.11850",
    url="https://github.com/smart-lty/ParallelSpeculativeDecoding",
    names={"gamma": "num_speculative_tokens"},
    models=(DRAFT,),
)
@dataclass
class Pearl:
    """Draft and target run at the same time, in two modes (Liu et al. 2024, arXiv 2408.11850).

    *Pre-verify*: nothing is drafted yet; the target's forward judges the first token that the draft
    model finds meanwhile. *Post-verify*: the target judges a drafted block while the draft goes
    on behind it. When all of it, and the token behind it, was right, what was drafted meanwhile is
    the next block; else it is dropped, and the mode is pre-verify again.

    When: the draft model has a device or threads of its own (``draft_device``, ``draft_threads``)
    that the target does not miss. Without them the models run in turn, and ``draft-model`` is
    faster.
    """

    num_speculative_tokens: int = parameter(4, 1, MAX_DRAFT, "tokens drafted in each forward")

    def decode(self, seq: TokenSequence) -> Steps:
        draft = ChainDraft()
        while not seq.finished:
            tree = draft.tree(seq.room - 1)
            # What lies beyond the room is never verified.
            count = min(len(tree) + self.num_speculative_tokens, seq.room)
            verify = Forward(seq.pending, tree=tree)
            reply, _ = yield Overlap(verify, draft.extend(seq, count))
            draft.commit(seq, coupled(seq, tree, reply))


# Mirror-SD: while the target verifies, draft behind every correction that it is likely to make.


@method(
    "mirror-sd",
    schedule=True,
    paper="Mirror Speculative Decoding",
    arxiv="2510.13161",
    aliases=("mirror",),
    names={"gamma": "num_speculative_tokens", "kappa": "candidates"},
    models=(DRAFT,),
)
@dataclass
class Mirror:
    """The draft model runs ahead for every likely outcome (Bhendawade et al. 2025).

    An early exit of the target announces, for each place of the block, which tokens it is likely to
    put there. While the target goes on behind the exit, the draft model drafts a block behind each
    of these corrections. If the outcome is among them, the next block is there already. The paper's
    draft model has streaming heads; this one drafts a token a forward.

    When: as ``pearl``, and the draft model runs many rows in little more time than one.
    """

    num_speculative_tokens: int = parameter(4, 1, MAX_DRAFT, "tokens of a drafted block")
    candidates: int = parameter(2, 0, 16, "corrections prepared for each place")
    announce: str = choice("target", ("target", "draft"), "who names the corrections")
    depth: float = parameter(0.5, 0.0, 1.0, "where the target's early exit is")

    def decode(self, seq: TokenSequence) -> Steps:
        draft = ChainDraft()
        while not seq.finished:
            tree = draft.tree(seq.room - 1)
            verify, likely = yield from self._announced(seq, draft, tree)
            count = min(self.num_speculative_tokens, seq.room - 1)
            extend = draft.extend(seq, len(tree) + count)
            ahead = draft.behind(seq, likely, count) if likely else extend
            reply, chains = yield Overlap(verify, ahead)
            verdict = coupled(seq, tree, reply)
            outcome = len(verdict.tokens) - 1, verdict.tokens[-1]
            draft.commit(seq, verdict)
            if outcome in likely:
                draft = chains[likely.index(outcome)]
            if not seq.finished:
                yield from draft.extend(seq, min(count, seq.room - 1))

    def _announced(
        self, seq: TokenSequence, draft: ChainDraft, tree: TokenTree
    ) -> Generator[Forward, Reply, tuple[Forward, list[Correction]]]:
        """The verification, or the part of it that is left, and the outcomes to prepare for."""
        whole, block = Forward(seq.pending, tree=tree), tree.tokens.tolist()
        if not block or self.candidates == 0 or not draft.fits(seq):
            return whole, []
        if self.announce == "target" and len(seq.pending) + len(block) <= seq.scratch:
            total = seq.about().layers
            exit = 1 + int(self.depth * (total - 1))
            chain = TokenTree.chain([*seq.pending.tolist(), *block])
            rows = np.arange(len(seq.pending) - 1, len(chain), dtype=np.int32)
            first = Forward(seq.pending[:0], tree=chain, layers=tuple(range(exit)), logits=rows,
                            hidden=(exit - 1,))  # fmt: skip
            reply = yield first
            if exit < total:
                whole = replace(whole, layers=tuple(range(exit, total)))
            paths = [block[:place] for place in range(len(block) + 1)]
            _, ids, chance = candidates(seq, reply.logits, paths, 1 + self.candidates, None)
        else:
            ids, chance = draft.guesses(seq, 1 + self.candidates)
            ids, chance = ids[: len(block)], chance[: len(block)]
        likely = [
            (place, int(token))
            for place in range(len(ids))
            for token in ids[place][chance[place] > 0][: 1 + self.candidates]
            if place == len(block) or token != block[place]
        ]
        free = seq.scratch - len(draft.own)
        return whole, [one for one in likely if own_id(seq, one[1]) is not None][: max(free, 0)]
