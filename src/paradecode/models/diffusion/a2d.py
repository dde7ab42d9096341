"""A2D of the dllm library (arXiv 2602.22661): Qwen2 and Qwen3 turned into diffusion models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paradecode.core.errors import InvalidModel
from paradecode.models.diffusion.family import MaskedFamily, published
from paradecode.models.metadata import Metadata
from paradecode.models.mixture import MOST

BLOCK = 32
"""Number of tokens in a block of the published bd3lm models."""


def _kind(values: Metadata, names: Sequence[str]) -> dict[str, Any]:
    """Return the fields for full attention or for blocks.

    The two kinds of models share one class, and config.json does not say which kind it is. So the
    model's name decides.
    """
    found = published(names, r".*-(mdlm|bd3lm)(-v[\d.]+)?")
    attention = values.get("attention")
    if attention is None and found is not None:
        attention = "block" if found[1].lower() == "bd3lm" else "full"
    if attention not in ("full", "block"):
        fix = (
            'config.json does not say it: add "attention": "full" (mdlm) or "block" (bd3lm), or '
            "give the folder its published name, which says mdlm or bd3lm"
        )
        raise InvalidModel("attention", attention, fix)
    if attention == "full":
        return {"attention": "full", "block_length": 0}
    length = values.whole("block_length", BLOCK, 1, MOST)
    decoder = "threshold(cache=prefix)"
    return {"attention": "block", "block_length": length, "decoder": decoder}


def _a2d(like: str) -> MaskedFamily:
    return MaskedFamily(
        like, "full", None, "threshold(block_length=32)", more=_kind,
        settings={"block_size": "block_length"},
    )  # fmt: skip


A2D_QWEN2, A2D_QWEN3 = _a2d("Qwen2ForCausalLM"), _a2d("Qwen3ForCausalLM")
