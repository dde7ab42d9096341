"""Multi-token prediction: some models were trained with a module that drafts for them."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.methods.draft.head_drafter import HeadDrafter
from paradecode.methods.draft.method import drafter

SOURCE = "the target's own MTP module"


@drafter(
    "mtp",
    paper="DeepSeek-V3 Technical Report",
    arxiv="2412.19437",
    training=SOURCE,
    aliases=("nextn",),
)
@dataclass
class Mtp(HeadDrafter):
    """The module for multi-token prediction, used again for each further token.

    Gloeckle et al. 2024 (arXiv 2404.19737), DeepSeek-AI 2024, FastMTP (arXiv 2509.18362). The
    tensors may have the names of DeepSeek, of Qwen3-Next or of speculators.

    When: the target was trained with such a module.
    """

    source = SOURCE
    kinds = ("mtp",)
