"""Chimera: a head that reads trigrams of new tokens on top of the target's states."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.draft.head_drafter import HeadDrafter
from paradecode.methods.draft.method import drafter

SOURCE = "a Chimera head of the target"


@drafter(
    "chimera",
    paper="Chimera: A Lossless Decoding Method for Accelerating Large Language Models Inference by "
    "Fusing all Tokens",
    arxiv="2402.15758",
    training=SOURCE,
)
@dataclass
class Chimera(HeadDrafter):
    """A layer fuses each new token's trigram with the target's states of all tokens before.

    Zeng et al. 2024. The trigram stands for the target's lower layers, the states for the upper
    ones. Each level has an LM head of its own, which also reads the last state of the target. The
    tree grows where the head is surest, in place of the paper's fixed one.

    When: there is such a head. Its LM heads read twice as much as others: ``vocabulary`` helps.
    """

    source = SOURCE
    kinds = ("chimera",)
