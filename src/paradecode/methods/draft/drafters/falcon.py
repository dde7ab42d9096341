"""Falcon: each pass of the head guesses several tokens of every path."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.draft.head_drafter import HeadDrafter
from paradecode.methods.draft.method import drafter

SOURCE = "a Falcon head of the target"


@drafter(
    "falcon",
    paper="Falcon: Faster and Parallel Inference of Large Language Models through Enhanced "
    "Semi-Autoregressive Drafting and Custom-Designed Decoding Tree",
    arxiv="2412.12639",
    training=SOURCE,
)
@dataclass
class Falcon(HeadDrafter):
    """Semi-autoregressive: rows that see one another guess one token each, block after block.

    Gao et al. 2024. Two levels cost one pass (the head says how many rows see one another). The
    guesses of a block do not know of one another, but the next block knows them all. An LSTM in
    front of the layer, and training in which some answers are shown, make up for that. The tree
    grows where the head is surest, in place of the paper's fixed one.

    When: there is such a head, and the levels of an EAGLE draft take too long.
    """

    source = SOURCE
    kinds = ("falcon",)
