"""Medusa: heads on the target's last state, each of which guesses the token at one later place."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.draft.head_drafter import HeadDrafter
from paradecode.methods.draft.method import drafter

SOURCE = "published Medusa heads of the target"


@drafter(
    "medusa",
    paper="Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads",
    arxiv="2401.10774",
    training=SOURCE,
)
@dataclass
class Medusa(HeadDrafter):
    """Several heads guess the next tokens at once, from one state of the target.

    Cai et al. 2024. The guesses do not know of one another: the tree is made of the likeliest
    paths through all of them, in place of the paper's fixed one. The paper's typical acceptance is
    ``medusa(head=...,verifier=typical)``; by default verification is exact. Heads with LM heads of
    their own and heads that share the target's are read.

    When: there are such heads, and a head must cost next to nothing.
    """

    source = SOURCE
    kinds = ("medusa",)
