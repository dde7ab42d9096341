"""LLaDA2.0 and 2.1 (arXiv 2512.15745): Ling's layers with experts, in blocks of 32."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from paradecode.models.diffusion.family import MaskedFamily, published
from paradecode.models.metadata import Metadata
from paradecode.models.mixture import MOST, MOST_LAYERS, Mixture

EDITS = "edit(threshold=0.95,least=0.9,cache=prefix)"
"""The default method of LLaDA2.1, which was trained to correct decided tokens."""
_LAYER = re.compile(r"(model\.layers\.\d{1,5}\.)attention\.(\w+)\.(weight|bias)")
_PARTS = {
    "dense": "self_attn.o_proj", "query_layernorm": "self_attn.q_norm",
    "key_layernorm": "self_attn.k_norm",
}  # fmt: skip


def llada2(values: Metadata, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return fields of a ``ModelConfig``; only the model's name says whether it is version 2.1."""
    size = values.whole("moe_intermediate_size", None, 1, MOST)
    shared, dense = (
        0 if values.get(key) is None else values.whole(key, None, 0, most)
        for key, most in (("num_shared_experts", MOST), ("first_k_dense_replace", MOST_LAYERS))
    )
    chosen = values.whole("num_experts_per_tok", None, 1, MOST)
    mixture = Mixture(
        experts=values.whole("num_experts", None, 1, MOST),
        chosen=chosen,
        expert_size=size,
        shared_size=size * shared,
        score="sigmoid",
        groups=values.get("n_group", 8),
        chosen_groups=values.get("topk_group", 4),
        bias=True,
        normalised=chosen > 1,
        scale=values.get("routed_scaling_factor", 2.5),
    )
    edits = values.get("model_type") == "llada21_moe" or published(names, r"LLaDA2\.1-.*")
    return {
        "mixture": mixture,
        "dense": frozenset(range(dense)),
        "qk_norm": bool(values.get("use_qk_norm", True)),
        "qkv_bias": bool(values.get("use_qkv_bias", False)),
        "output_bias": bool(values.get("use_bias", True)),
    } | ({"decoder": EDITS} if edits else {})


def _stored(name: str) -> str | None:
    match = _LAYER.fullmatch(name)
    if match is not None and match[2] in _PARTS:
        return f"{match[1]}{_PARTS[match[2]]}.{match[3]}"
    return "model.embed_tokens.weight" if name == "model.word_embeddings.weight" else None


def stored_in_one(name: str) -> tuple[str, str, str] | None:
    """Return the names of queries, keys and values that LLaDA2 stores together, or None.

    Their rows follow one another in one tensor. Other tensors give None.
    """
    match = _LAYER.fullmatch(name)
    if match is None or match[2] != "query_key_value":
        return None
    q, k, v = (f"{match[1]}self_attn.{part}_proj.{match[3]}" for part in "qkv")
    return q, k, v


LLADA2 = MaskedFamily(
    "LlamaForCausalLM", "block", 156895, "threshold(threshold=0.95,cache=prefix)", block_length=32,
    eos_tokens=(156892,), stored=_stored, more=llada2,
    defaults={
        "max_position_embeddings": 16384, "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5,
    },
)  # fmt: skip
