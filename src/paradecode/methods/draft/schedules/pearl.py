"""PEARL: draft while the target verifies, verify while the draft goes on."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.core.decoder import DRAFT, Forward, Overlap, Steps, TokenSequence
from paradecode.methods.draft.chain_draft import ChainDraft
from paradecode.methods.draft.loop import MAX_DRAFT
from paradecode.methods.draft.verifiers import coupled
from paradecode.methods.parts import method, parameter


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
