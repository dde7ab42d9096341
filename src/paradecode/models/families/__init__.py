"""The families of models beside Llama, Mistral and Qwen: one record each."""

from __future__ import annotations

import re

from paradecode.models.families import experts, gpt, hybrids, llama_like, mamba2
from paradecode.models.families.family import Family as Family
from paradecode.models.families.gemma import DIFFUSION_GEMMA, GEMMA, GEMMA2, GEMMA3, GEMMA4

FAMILIES = (
    GEMMA, GEMMA2, GEMMA3, GEMMA4, DIFFUSION_GEMMA,
    *llama_like.FAMILIES, *gpt.FAMILIES, *experts.FAMILIES, *mamba2.FAMILIES,
    *hybrids.FAMILIES,
)  # fmt: skip
BY_CLASS = {
    known if re.search("LMHead|For", known) else f"{known}ForCausalLM": family
    for family in FAMILIES
    for known in family.classes
}
"""transformers' class -> family."""
BY_TYPE = {kind: family for family in FAMILIES for kind in family.model_types}
"""``model_type`` -> family, for a config.json that names no class."""
BY_GGUF = {name: family for family in FAMILIES for name in family.gguf}
"""``general.architecture`` -> family."""
BY_NAME = {family.name: family for family in FAMILIES}
"""``ModelConfig.architecture`` -> family."""
