"""Dovetail: an EAGLE-like head of several layers, which weighs states and tokens with a gate."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.draft.head_drafter import HeadDrafter
from paradecode.methods.draft.method import drafter
from paradecode.methods.parts import parameter

SOURCE = "a Dovetail head of the target"


@drafter(
    "dovetail",
    paper="Dovetail: A CPU/GPU Heterogeneous Speculative Decoding for LLM inference",
    arxiv="2412.18934",
    training=SOURCE,
)
@dataclass
class Dovetail(HeadDrafter):
    """A gate weighs the target's state against the token, and several layers guess on.

    Zhang et al. 2024. Where a row of the target is dear, few nodes of a better head pay: the paper
    verifies 16, on a CPU, and drafts on a GPU (``draft_device``, for any head). Here the budget
    says how many.

    When: there is such a head, and the target's rows cost much.
    """

    source = SOURCE
    kinds = ("dovetail",)

    depth: int = parameter(7, 1, 16, "most levels")
