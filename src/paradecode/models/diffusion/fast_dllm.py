"""Fast-dLLM v2 (arXiv 2509.26328): Qwen2.5 in blocks of 32, with shifted logits."""

from __future__ import annotations

from paradecode.models.diffusion.family import MaskedFamily

FAST_DLLM = MaskedFamily(
    "Qwen2ForCausalLM", "block", 151665, "threshold(blocks=lead,cache=prefix)", block_length=32,
    shift=True, eos_tokens=(151645,), settings={"bd_size": "block_length"},
)  # fmt: skip
