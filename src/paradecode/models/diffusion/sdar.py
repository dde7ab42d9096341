"""SDAR and TraDo (arXiv 2510.06303, 2509.06949): Qwen3, dense or with experts, in blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paradecode.core.errors import InvalidModel
from paradecode.models.diffusion.family import MaskedFamily, published
from paradecode.models.metadata import Metadata
from paradecode.models.mixture import MOST, qwen3_moe

_NAME = r"(SDAR|TraDo)-[\d.]+B(-A3B)?-(Base|Chat|Instruct|Sci|Thinking)(-b(\d{1,4}))?"
"""Names of the published models; a name without -bN means blocks of 4."""


def _block_length(values: Metadata, names: Sequence[str]) -> dict[str, Any]:
    """Return the block length from config.json, or from the model's published name.

    Published files lack the block length.
    """
    if "block_length" in values:
        return {"block_length": values.whole("block_length", None, 1, MOST)}
    found = published(names, _NAME)
    if found is None:
        fix = (
            'config.json does not say it: add "block_length": N (N of SDAR\'s -bN, 4 without), or '
            "give the folder its published name, such as SDAR-4B-Chat-b32"
        )
        raise InvalidModel("block_length", None, fix)
    return {"block_length": int(found[5] or 4)}


def _with_experts(values: Metadata, names: Sequence[str]) -> dict[str, Any]:
    return qwen3_moe(values) | _block_length(values, names)


def _sdar(more: Any) -> MaskedFamily:
    return MaskedFamily(
        "Qwen3ForCausalLM", "block", 151669, "threshold(threshold=0.85,cache=prefix)",
        eos_tokens=(151643, 151645), settings={"block_size": "block_length"}, more=more,
    )  # fmt: skip


SDAR, SDAR_MOE = _sdar(_block_length), _sdar(_with_experts)
