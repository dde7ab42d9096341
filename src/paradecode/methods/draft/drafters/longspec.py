"""LongSpec: one layer that sees the target's own keys and values, and a window of tokens."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.draft.head_drafter import HeadDrafter
from paradecode.methods.draft.method import drafter
from paradecode.methods.parts import parameter

SOURCE = "a LongSpec layer of the target"


@drafter(
    "longspec",
    paper="LongSpec: Long-Context Lossless Speculative Decoding with Efficient Drafting and "
    "Verification",
    arxiv="2502.17421",
    training=SOURCE,
)
@dataclass
class LongSpec(HeadDrafter):
    """One layer sees the last 512 tokens, and what the target's last layer keeps of the whole text.

    Yang et al. 2025. A token's embedding goes through attention to the last tokens, attention to
    the target's keys and values, and an MLP. The layer's own keys and values are as many in a long
    text as in a short one. The target's are not read from its cache: the head makes them once more
    and keeps them, so memory of one layer of the target comes on top: for the whole text, even if
    the target's own layers see a window. The tree grows where the head is surest; the paper's has
    a level of 4 nodes and four levels of 16.

    When: texts are long, and there is such a head.
    """

    source = SOURCE
    kinds = ("longspec",)

    depth: int = parameter(5, 1, 16, "most levels")
