"""Dream and DiffuCoder (arXiv 2508.15487, 2506.20639): Qwen2.5 with shifted logits."""

from __future__ import annotations

from paradecode.models.diffusion.family import MaskedFamily

DREAM = MaskedFamily(
    "Qwen2ForCausalLM", "full", 151666, "threshold(block_length=32)", shift=True,
    eos_tokens=(151643, 151645),
)  # fmt: skip
