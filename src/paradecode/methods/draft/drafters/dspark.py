"""DSpark: DFlash with guesses that depend on the token before them."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.draft.head_drafter import HeadDrafter
from paradecode.methods.draft.method import drafter

SOURCE = "a published DSpark head of the target"


@drafter(
    "dspark",
    paper="DSpark: Confidence-Scheduled Speculative Decoding with Semi-Autoregressive Generation",
    arxiv="2607.05147",
    training=SOURCE,
)
@dataclass
class DSpark(HeadDrafter):
    """A block of masks is filled in one forward; a small table makes its tokens follow one another.

    The layers are DFlash's. What each token adds to the logits of the next one is a product of two
    narrow matrices, so the tree grows level by level without another forward. The head's own
    estimates of what will be accepted are not read: estimates are corrected by what comes true.

    When: there is such a head.
    """

    source = SOURCE
    kinds = ("dspark",)
