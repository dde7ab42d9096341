"""P-EAGLE: an EAGLE-3 head that drafts all its tokens in one forward."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.draft.head_drafter import HeadDrafter
from paradecode.methods.draft.method import drafter

SOURCE = "a published P-EAGLE head of the target"


@drafter(
    "p-eagle",
    paper="P-EAGLE: Parallel-Drafting EAGLE with Scalable Training",
    arxiv="2602.01469",
    training=SOURCE,
    aliases=("peagle", "parallel-eagle"),
)
@dataclass
class PEagle(HeadDrafter):
    """Masks behind the last token stand for the tokens to come; one forward guesses them all.

    Where EAGLE needs a forward for each level, this needs one for the draft, so a deep draft costs
    little more than a shallow one. The tree is made of the likeliest paths through the guesses,
    which do not know of one another.

    When: there is such a head, and the levels of an EAGLE draft take too long.
    """

    source = SOURCE
    kinds = ("p-eagle",)
