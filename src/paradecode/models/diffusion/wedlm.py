"""WeDLM (arXiv 2512.22737): causal Qwen2.5 or Qwen3, decoded as what it also is: autoregressive.

Its own parallel order, in which known tokens move in front of the masks, is not implemented.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paradecode.models.diffusion.family import Family
from paradecode.models.metadata import Metadata


def _parts(values: Metadata, names: Sequence[str]) -> dict[str, Any]:
    """Qwen2.5 has biases, Qwen3 norms; the defaults are those of its code."""
    return {
        "qk_norm": values.flag("qk_norm", False),
        "qkv_bias": values.flag("attention_bias", True),
        "output_bias": False,
        "mask_token": None,
    }


WEDLM = Family("Qwen3ForCausalLM", "causal", None, "", more=_parts)
