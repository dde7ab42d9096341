"""WeDLM (arXiv 2512.22737): Qwen2.5 or Qwen3 that fills masks after known tokens, causally."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paradecode.models.diffusion.family import MaskedFamily
from paradecode.models.metadata import Metadata


def _parts(values: Metadata, names: Sequence[str]) -> dict[str, Any]:
    """Return the fields for Qwen2.5, which has biases, or Qwen3, which has norms.

    The defaults are those of WeDLM's code.
    """
    return {
        "qk_norm": values.flag("qk_norm", False),
        "qkv_bias": values.flag("attention_bias", True),
        "output_bias": False,
    }


WEDLM = MaskedFamily("Qwen3ForCausalLM", "causal", 151665, "wedlm", more=_parts)
