"""A second, smaller model drafts."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.core.decoder import DRAFT, TokenSequence
from paradecode.methods.draft.acceptance import Calibration
from paradecode.methods.draft.loop import Proposal, drafter
from paradecode.methods.draft.model_drafter import ModelDrafter
from paradecode.methods.draft.needs import Needs
from paradecode.methods.draft.source import Source
from paradecode.methods.parts import parameter


@drafter(
    "draft-model",
    paper="Fast Inference from Transformers via Speculative Decoding",
    arxiv="2211.17192",
    aliases=("draft_model", "draft", "assisted", "speculative"),
    names={
        "num_assistant_tokens": "num_speculative_tokens",
        "assistant_confidence_threshold": "threshold",
        "draft_tokens": "num_speculative_tokens",
    },
    models=(DRAFT,),
)
@dataclass
class DraftModel(ModelDrafter):
    """A small model drafts a tree (Leviathan et al. 2023; Chen et al. 2023, arXiv 2302.01318).

    With ``width`` 1 the draft is a chain. Its own K/V cache follows by itself: accepted rows stay,
    others are dropped, and what it has not seen comes with its next forward.

    When: the target is several times as large as the draft model, and what is written is new, so
    that there is nothing to copy.
    """

    needs = Needs(noise=True, draws=True, levels=True, runs=(DRAFT,), rests=True)

    width: int = parameter(3, 1, 16, "candidates of each node; 1 drafts a chain")

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        calibration = seq.shared("draft-model", Calibration)
        return self.grow(seq, limit, Source(DRAFT), self.width, calibration)
