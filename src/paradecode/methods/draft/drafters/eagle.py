"""EAGLE: one layer on the target's hidden states drafts a tree."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.draft.head_drafter import HeadDrafter
from paradecode.methods.draft.method import drafter

SOURCE = "a published EAGLE-1, 2 or 3 head of the target"


@drafter(
    "eagle",
    paper="EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time "
    "Test",
    arxiv="2503.01840",
    training=SOURCE,
    aliases=("eagle1", "eagle2", "eagle3", "eagle-1", "eagle-2", "eagle-3"),
    names={"num_steps": "depth", "eagle_topk": "width"},
)
@dataclass
class Eagle(HeadDrafter):
    """A head of one layer reads the target's states and drafts a tree of its surest guesses.

    EAGLE-1 (Li et al. 2024, arXiv 2401.15077) reads the last layer, EAGLE-3 (2025) three of them;
    the folder says which. The tree is that of EAGLE-2 (arXiv 2406.16858): the most probable paths,
    level by level. Folders of SafeAILab/EAGLE and of speculators are read.

    When: there is a head for the target, and what is written is new. ``suffix+eagle(head=...)``
    copies where the text repeats and drafts elsewhere.
    """

    source = SOURCE
    kinds = ("eagle", "eagle3")
