"""Mirror-SD: while the target verifies, draft behind every correction that it is likely to make."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from paradecode.core.decoder import Steps
from paradecode.core.request import DRAFT, Forward, Reply
from paradecode.core.sequence import Sequence
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.drafters.tree_draft import NO_TOKENS, candidates
from paradecode.methods.draft.loop import MAX_DRAFT
from paradecode.methods.draft.schedules.chain_draft import (
    ChainDraft,
    own_id,
    row_of,
)
from paradecode.methods.draft.verifiers import coupled
from paradecode.methods.parameters import choice, parameter
from paradecode.methods.parts import method

Hypothesis = tuple[int, int]
"""(r, c): the target accepts r tokens of the draft, then corrects with c."""


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
    put there. While the target finishes, the draft model runs the row that follows each of these
    corrections. If the outcome is among them, the next block begins without waiting for the draft.
    The paper's draft model has streaming heads; this one drafts a token a forward.

    When: to study the schedule: it saves forwards of the target, but backends here run the two
    models in turn, so that no time is saved yet.
    """

    num_speculative_tokens: int = parameter(4, 1, MAX_DRAFT, "tokens of a drafted block")
    candidates: int = parameter(2, 0, 16, "corrections prepared for each place")
    announce: str = choice("target", ("target", "draft"), "who names the corrections")
    depth: float = parameter(0.5, 0.0, 1.0, "where the target's early exit is")

    def decode(self, seq: Sequence) -> Steps:
        draft = ChainDraft()
        while not seq.finished:
            tree = draft.tree(seq.room - 1)
            verify = Forward(seq.pending, tree=tree)
            likely: list[Hypothesis] = []
            ahead: Reply | None = None
            if len(tree):
                likely = yield from self._announced(seq, draft)
                reply, ahead = yield [verify, self._ahead(seq, draft, likely)]
            elif draft.fits(seq):
                reply, _ = yield [verify, draft.forward(seq)]
            else:
                reply = yield verify
            verdict = coupled(seq, tree, reply)
            outcome = len(verdict.tokens) - 1, verdict.tokens[-1]
            seq.commit(verdict)
            draft.drop()
            if seq.finished:
                return
            known = None
            if ahead is not None and outcome in likely:
                known = ahead.logits.select([likely.index(outcome)])
            yield from draft.extend(seq, min(self.num_speculative_tokens, seq.room - 1), known)

    def _announced(
        self, seq: Sequence, draft: ChainDraft
    ) -> Generator[Forward, Reply, list[Hypothesis]]:
        """The outcomes to prepare for."""
        block, pending = draft.tokens, seq.pending
        if self.candidates == 0 or len(pending) + len(block) > MAX_DRAFT:
            return []
        if self.announce == "target":
            layers = range(1 + int(self.depth * (seq.about().layers - 1)))
            chain = TokenTree.chain([*pending.tolist(), *block])
            rows = np.arange(len(pending) - 1, len(chain), dtype=np.int32)
            reply = yield Forward(NO_TOKENS, tree=chain, layers=tuple(layers), logits=rows)
            paths = [block[:place] for place in range(len(block) + 1)]
            _, ids, chance = candidates(seq, reply.logits, paths, 1 + self.candidates, None)
        else:
            vocabulary = seq.about(DRAFT).vocabulary
            found = [
                candidates(seq, row, [block[:place]], 1 + self.candidates, vocabulary)
                for place, row in enumerate(draft.rows)
            ]
            ids = np.concatenate([ids for _, ids, _ in found])
            chance = np.concatenate([chance for _, _, chance in found])
        likely = [
            (place, int(token))
            for place in range(len(ids))
            for token in ids[place][chance[place] > 0][: 1 + self.candidates]
            if place == len(block) or token != block[place]
        ]
        return [h for h in likely if own_id(seq, h[1]) is not None][: MAX_DRAFT - len(block)]

    def _ahead(self, seq: Sequence, draft: ChainDraft, likely: list[Hypothesis]) -> Forward:
        """The draft model's row of the block's last token, then one of each correction."""
        pending, last = seq.pending_for(DRAFT), len(draft.own) - 1
        tokens, parents, under = [draft.own[-1]], [ROOT], [row_of(last - 1)]
        for place, token in likely:
            own = own_id(seq, token)
            assert own is not None
            tokens.append(own)
            parents.append(0 if place == len(draft.own) else ROOT)
            under.append(row_of(place - 1))
        tree = TokenTree(np.array(tokens, np.int32), np.array(parents, np.int32))
        rows = len(pending) + np.arange(1, len(tree), dtype=np.int32)  # Those of the corrections.
        return Forward(
            pending, tree=tree, under=np.array(under, np.int32), logits=rows, model=DRAFT
        )
