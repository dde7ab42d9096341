"""LLaDA-MoE (arXiv 2509.24389): full attention, and experts in the layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paradecode.core.errors import InvalidModel
from paradecode.models.diffusion.family import MaskedFamily
from paradecode.models.metadata import Metadata
from paradecode.models.mixture import MOST, Mixture


def llada_moe(values: Metadata, names: Sequence[str] = ()) -> dict[str, Any]:
    """Return fields of a ``ModelConfig``.

    LLaDA-MoE's code never normalises or scales the experts' weights, and its score is always a
    softmax. Settings of the file for these are ignored.
    """
    if values.get("clip_qkv") is not None:
        raise InvalidModel("clip_qkv", values["clip_qkv"], "clipped projections are not known")
    kinds = values.get("moe_layer_freq")
    if not isinstance(kinds, list) or len(kinds) != values.get("num_hidden_layers"):
        raise InvalidModel("moe_layer_freq", kinds, "give a 0 or a 1 for each layer")
    biased = bool(values.get("moe_router_enable_expert_bias"))
    mixture = Mixture(
        experts=values.whole("num_experts", None, 1, MOST),
        chosen=values.whole("num_experts_per_tok", None, 1, MOST),
        expert_size=values.whole("expert_intermediate_size", None, 1, MOST),
        shared_size=values.get("shared_expert_intermediate_size") or 0,
        bias=biased,
        biased_weights=biased,
    )
    dense = frozenset(index for index, kind in enumerate(kinds) if kind == 0)
    return {"mixture": mixture, "dense": dense, "qk_norm": bool(values.get("qk_layernorm"))}


LLADA_MOE = MaskedFamily(
    "LlamaForCausalLM", "full", 156895, "threshold(block_length=32)", eos_tokens=(156892,),
    settings={"dense_intermediate_size": "intermediate_size"},
    defaults={"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}, more=llada_moe,
)  # fmt: skip
