"""DFlash: a block of masks behind the last token becomes a draft in one forward."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.draft.head_drafter import HeadDrafter
from paradecode.methods.draft.method import drafter

SOURCE = "a published DFlash head of the target"


@drafter(
    "dflash",
    paper="DFlash: Block Diffusion for Flash Speculative Decoding",
    arxiv="2602.06036",
    training=SOURCE,
)
@dataclass
class DFlash(HeadDrafter):
    """A few layers fill a whole block of masks at once, with the target's states as their context.

    Every layer sees the target's hidden states of the text as keys and values of its own, and the
    masks see one another. Where P-EAGLE's masks are read in order, these are denoised together, in
    one step. The tree is made of the likeliest paths through the guesses. Folders of speculators
    and of z-lab are read; the head says how long a block is.

    When: there is such a head: a draft of eight tokens costs one forward of it.
    """

    source = SOURCE
    kinds = ("dflash",)
