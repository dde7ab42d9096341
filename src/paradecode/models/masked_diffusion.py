"""Read the config.json of masked diffusion models: each is a causal architecture plus a few facts.

The facts of a family are in a file of ``models/diffusion/``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from paradecode.core.errors import InvalidModel, shown
from paradecode.models.diffusion.a2d import A2D_QWEN2, A2D_QWEN3
from paradecode.models.diffusion.dream import DREAM
from paradecode.models.diffusion.family import MaskedFamily
from paradecode.models.diffusion.fast_dllm import FAST_DLLM
from paradecode.models.diffusion.llada import LLADA
from paradecode.models.diffusion.llada2 import LLADA2
from paradecode.models.diffusion.llada_moe import LLADA_MOE
from paradecode.models.diffusion.sdar import SDAR, SDAR_MOE
from paradecode.models.diffusion.wedlm import WEDLM
from paradecode.models.metadata import Metadata

FAMILIES = {
    "LLaDAModelLM": LLADA, "DreamModel": DREAM, "SDARForCausalLM": SDAR,
    "SDARMoeForCausalLM": SDAR_MOE, "Fast_dLLM_QwenForCausalLM": FAST_DLLM,
    "LLaDAMoEModelLM": LLADA_MOE, "LLaDA2MoeModelLM": LLADA2, "A2DQwen2LMHeadModel": A2D_QWEN2,
    "A2DQwen3LMHeadModel": A2D_QWEN3, "WeDLMForCausalLM": WEDLM,
}  # fmt: skip
"""Name in ``architectures`` -> facts."""
BLOCKS = "threshold(cache=prefix)"
"""Default method of any model with blocks; its prefix cache saves time and changes no output."""


def as_causal(
    name: object, raw: Metadata, folder: Path = Path()
) -> tuple[object, Metadata, dict[str, Any]]:
    """Return the causal architecture that a configuration resembles.

    Args:
        name: the first of ``architectures``.
        raw: config.json.
        folder: folder of config.json; for some families a fact is only in the published name.

    Returns:
        The architecture's name, its settings, and the fields of a ``ModelConfig`` that differ. The
        config.json of any architecture may give ``attention``, ``block_length`` and ``shift``.

    Raises:
        InvalidModel: the mask token is outside of the vocabulary, two keys contradict each other,
            or a fact is missing or not supported.
    """
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None and "attention" not in raw:
        return name, raw, {}
    usual = BLOCKS if raw.get("attention") == "block" else ""
    known = family or MaskedFamily(str(name), "causal", -1, usual)
    for theirs, ours in known.settings.items():
        if theirs in raw and raw.get(ours, raw[theirs]) != raw[theirs]:
            fix = f"{theirs} says {shown(raw[theirs])}; keep one of the two"
            raise InvalidModel(ours, raw[ours], fix)
    given = {known.settings.get(key, key): value for key, value in raw.items()}
    values = Metadata({**known.defaults, **{k: v for k, v in given.items() if v is not None}})
    size, mask = values.whole("vocab_size"), known.mask_token
    if mask is not None or "mask_token_id" in values:
        mask = values.whole("mask_token_id", mask, 0, size - 1)
    differs = {
        "attention": values.get("attention", known.attention),
        "block_length": values.whole("block_length", known.block_length),
        "shift": values.flag("shift", known.shift),
        "mask_token": mask,
        "decoder": known.decoder,
        "eos_tokens": tuple(token for token in known.eos_tokens if token < size),
    }
    return known.like, values, differs | known.more(values, _names(raw, folder))


def _names(raw: Metadata, folder: Path) -> list[str]:
    """Return possible names of the model: the components of its path.

    In the hub's cache, the path contains ``models--org--name``.
    """
    said = raw.get("_name_or_path")
    paths = [str(said if isinstance(said, str) else ""), str(folder.absolute())]
    return [part for path in paths for part in reversed(re.split(r"[/\\]|--", path)) if part]


def stored_as(name: str) -> str:
    """Return the name of a stored tensor in the causal architecture."""
    found = (family.stored(name) for family in FAMILIES.values())
    return next((own for own in found if own is not None), name)
