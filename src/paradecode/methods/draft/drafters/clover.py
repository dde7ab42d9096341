"""Clover: one pass of attention over the text, then a small recurrent cell for each level."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.draft.head_drafter import HeadDrafter
from paradecode.methods.draft.method import drafter

SOURCE = "a Clover or Clover-2 head of the target"


@drafter(
    "clover",
    paper="Clover-2: Accurate Inference for Regressive Lightweight Speculative Decoding",
    arxiv="2408.00264",
    training=SOURCE,
    aliases=("clover2", "clover-2"),
)
@dataclass
class Clover(HeadDrafter):
    """Layers read the target's last states; behind them a cell merges in token after token.

    Clover (Xiao et al. 2024, arXiv 2405.00263) and Clover-2 (2024); the folder says which. Where
    Medusa's guesses do not know of one another, each of these knows the tokens before it; where
    EAGLE runs a layer for each level, this runs a cell without attention and without a memory of
    its own. The tree is grown as for ``eagle``, in place of the paper's cut at a probability mass
    for each node.

    When: there is such a head, and the layer of an EAGLE draft takes too long.
    """

    source = SOURCE
    kinds = ("clover", "clover-2")
