"""PEARL: draft while the target verifies, verify while the draft goes on."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.core.decoder import Steps
from paradecode.core.request import DRAFT, Forward
from paradecode.core.sequence import Sequence
from paradecode.methods.draft.chain_draft import ChainDraft
from paradecode.methods.draft.loop import MAX_DRAFT
from paradecode.methods.draft.verifiers import coupled
from paradecode.methods.parameters import parameter
from paradecode.methods.parts import method


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
    on behind it. When all of it, and the token behind it, was right, drafting goes on from there;
    else what is wrong is dropped, and the mode is pre-verify again.

    When: to study the schedule: it saves forwards of the target, but backends here run the two
    models in turn, so that no time is saved yet.
    """

    num_speculative_tokens: int = parameter(4, 1, MAX_DRAFT, "tokens of a drafted block")

    def decode(self, seq: Sequence) -> Steps:
        draft = ChainDraft()
        while not seq.finished:
            tree = draft.tree(seq.room - 1)
            verify = Forward(seq.pending, tree=tree)
            guess = None
            if draft.fits(seq):
                reply, ahead = yield [verify, draft.forward(seq)]
                guess = draft.guess(seq, ahead.logits)
            else:
                reply = yield verify
            verdict = coupled(seq, tree, reply)
            passed = guess is not None and verdict.tokens == [*draft.tokens, guess[1]]
            seq.commit(verdict)
            draft.drop()
            if passed and not seq.finished:
                yield from draft.extend(seq, min(self.num_speculative_tokens, seq.room - 1))
