"""PEARL and Mirror-SD: the draft model goes on while the target verifies."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np

from paradecode.core.decoder import DRAFT, Forward, Overlap, Reply, Steps, TokenSequence
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.candidates import candidates
from paradecode.methods.draft.chain_draft import ChainDraft, Correction, own_id
from paradecode.methods.draft.loop import MAX_DRAFT
from paradecode.methods.draft.verifiers import coupled
from paradecode.methods.parts import choice, method, parameter


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
