"""FlexDraft: masks pass the target's last layers with attention of their own."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.draft.head_drafter import HeadDrafter
from paradecode.methods.draft.method import drafter

SOURCE = "a FlexDraft checkpoint of the target"


@drafter(
    "flexdraft",
    paper="FlexDraft: Flexible Speculative Decoding via Attention Tuning and Bonus-Guided "
    "Calibration",
    arxiv="2605.20022",
    training=SOURCE,
)
@dataclass
class FlexDraft(HeadDrafter):
    """A block of masks enters the target in the middle, and its last layers fill them at once.

    Zhang et al. 2026. There masks have projections of attention of their own; norms, MLPs and the
    keys and values of the text are the target's. They do not know the token that the verification
    added; a small MLP calibrates all guesses when it is known. The paper computes a block behind
    every draft token beside the verification (at small batches), or one block after it (at large
    ones). The guesses are the same; here it is one block after it, run as a head that holds copies
    of these layers and keeps their keys and values of the text a second time.

    When: there is such a checkpoint, and the target is so large that a few of its layers are few.
    """

    source = SOURCE
    kinds = ("flexdraft",)
