"""Mirror-SD: while the target verifies, draft behind every correction that it is likely to make."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from paradecode.core.decoder import Steps
from paradecode.core.request import DRAFT, Forward, Reply
from paradecode.core.sequence import Sequence
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.candidates import candidates
from paradecode.methods.draft.chain_draft import ChainDraft, Correction, own_id
from paradecode.methods.draft.loop import MAX_DRAFT
from paradecode.methods.draft.verifiers import coupled
from paradecode.methods.parameters import choice, parameter
from paradecode.methods.parts import method


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
            likely: list[Correction] = []
            ahead: Reply | None = None
            if len(tree):
                likely = yield from self._announced(seq, draft)
                reply, ahead = yield [verify, draft.ahead(seq, likely)]
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
    ) -> Generator[Forward, Reply, list[Correction]]:
        """The outcomes to prepare for."""
        block, pending = draft.tokens, seq.pending
        if self.candidates == 0 or len(pending) + len(block) > MAX_DRAFT:
            return []
        if self.announce == "target":
            layers = range(1 + int(self.depth * (seq.about().layers - 1)))
            chain = TokenTree.chain([*pending.tolist(), *block])
            rows = np.arange(len(pending) - 1, len(chain), dtype=np.int32)
            reply = yield Forward(pending[:0], tree=chain, layers=tuple(layers), logits=rows)
            paths = [block[:place] for place in range(len(block) + 1)]
            _, ids, chance = candidates(seq, reply.logits, paths, 1 + self.candidates, None)
        else:
            ids, chance = draft.guesses(seq, 1 + self.candidates)
        likely = [
            (place, int(token))
            for place in range(len(ids))
            for token in ids[place][chance[place] > 0][: 1 + self.candidates]
            if place == len(block) or token != block[place]
        ]
        return [one for one in likely if own_id(seq, one[1]) is not None][: MAX_DRAFT - len(block)]
