"""Families with experts: Mixtral (arXiv 2401.04088), gpt-oss (2508.10925) and Step-3 (2507.19427).

The experts of BlockFFN (arXiv 2507.08771) are here, too; its models have MiniCPM's class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from paradecode.core.errors import InvalidModel
from paradecode.models.families.family import (
    LLAMA_NAMES,
    Family,
    Fields,
    attention_of,
    common,
    feed_of,
    head_sizes,
    layers_of,
    sliding_layers,
)
from paradecode.models.folder_rope import rope_of
from paradecode.models.metadata import Metadata
from paradecode.models.mixture import MOST, Mixture
from paradecode.models.parts import Feed, Layer
from paradecode.models.weights import Tensor


def _mixture(values: Metadata, size: str, **more: Any) -> Mixture:
    return Mixture(
        experts=values.whole("num_local_experts", None, 1, MOST),
        chosen=values.whole("num_experts_per_tok", None, 1, MOST),
        expert_size=values.whole(size, None, 1, MOST), normalised=True, **more,
    )  # fmt: skip


def _mixtral(values: Metadata) -> Fields:
    attention = attention_of(
        values, rope_of(values, head_sizes(values)[2]), window=values.whole("sliding_window", 0)
    )
    feed = Feed(0, mixture=_mixture(values, "intermediate_size"))
    return common(values, (Layer((attention, feed)),) * len(layers_of(values)))


def _gpt_oss(values: Metadata) -> Fields:
    for key, usual in (("swiglu_alpha", 1.702), ("swiglu_limit", 7.0)):
        if values.number(key, usual) != usual:
            raise InvalidModel(key, values[key], f"only models with {usual} are known")
    attention = attention_of(values, rope_of(values, head_sizes(values)[2]), sinks=True)
    near = replace(attention, window=values.whole("sliding_window", 0))
    size = "moe_intermediate_size" if values.get("gguf") else "intermediate_size"
    mixture = _mixture(values, size, logit_bias=True, expert_bias=True)
    feed = Feed(0, activation="swiglu_oai", mixture=mixture)
    slides = values.get("layer_types")
    if slides is None:  # The first layer has the window, and then every second one.
        kinds = ["full_attention" if i % 2 else "sliding_attention" for i in layers_of(values)]
        values["layer_types"] = kinds
    stack = tuple(Layer((near if one else attention, feed)) for one in sliding_layers(values, 2))
    return common(values, stack)


def _oss_experts(own: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield each expert's part of gpt-oss's tensors, which have inputs first, gate and up in turn.

    Other tensors are yielded as they are.
    """
    place, found, part = own.partition("experts.")
    if not found:
        yield own, tensor
        return
    matrix = part.removesuffix("_bias")
    values = tensor.float32()
    if own.endswith("_bias"):
        values = values[:, None]
    parts = {"down": values} if matrix == "down" else {
        "gate": values[..., 0::2], "up": values[..., 1::2],
    }  # fmt: skip
    for name, each in parts.items():
        for expert, one in enumerate(each):
            rows = np.ascontiguousarray(one[0] if own.endswith("_bias") else one.T)
            end = ".bias" if own.endswith("_bias") else ""
            yield f"{place}experts.{expert}.{name}{end}", Tensor(rows, rows.shape)


def rectified_feed(values: Metadata) -> Feed:
    """Return BlockFFN's experts: each has no gate, and a row goes to all with a logit above 0."""
    for key, known in (
        ("router_act", "relu"), ("norm_after_router", "rms"), ("num_shared_experts", 0),
    ):  # fmt: skip
        if values.get(key, known) != known:
            raise InvalidModel(key, values[key], f"only {known} is known")
    experts = values.whole("num_experts", None, 1, MOST)
    size = values.whole("expert_size", None, 1, MOST)
    inner = feed_of(values, gated=False)
    return replace(inner, size=0, mixture=Mixture(experts, experts, size, score="relu"))


def rectified_experts(own: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Yield each expert's part of BlockFFN's ``up`` and ``down``, which are [E, rows, columns].

    Other tensors are yielded as they are.
    """
    place, _, part = own.rpartition(".")
    if part not in ("up", "down") or len(tensor.shape) != 3:
        yield own, tensor
        return
    for expert in range(tensor.shape[0]):
        one = Tensor(tensor.data[expert], tensor.shape[1:], tensor.kind)
        yield f"{place}.experts.{expert}.{part}", one


def _step3(values: Metadata) -> Fields:
    """Step-3: queries of an inner width that all heads share, and one head of keys and values."""
    groups = values.whole("num_attention_groups", 1)
    if groups != 1:
        raise InvalidModel("num_attention_groups", groups, "only 1 head of keys and values works")
    values["num_key_value_heads"] = groups
    values["max_position_embeddings"] = values.whole("max_position_embedding", None, 1)
    size = values.whole("head_dim", None, 1, 1024)
    rank = values.whole("share_q_dim", size, 1, 1 << 16)
    attention = attention_of(values, rope_of(values, size), query_rank=rank)
    mixture = Mixture(
        experts=values.whole("moe_num_experts", None, 1, MOST),
        chosen=values.whole("moe_top_k", None, 1, MOST),
        expert_size=values.whole("moe_intermediate_size", None, 1, MOST),
        shared_size=values.whole("share_expert_dim", None, 1, MOST),
        normalised=values.flag("norm_expert_weight"),
    )
    dense, sent = Layer((attention, feed_of(values))), Layer((attention, Feed(0, mixture=mixture)))
    routed = _routed(values)
    return common(values, tuple(sent if i in routed else dense for i in layers_of(values)))


def _routed(values: Metadata) -> set[int]:
    """Return the layers of ``moe_layers_enum``, a list or a text with commas; null: all but 0."""
    said, count = values.get("moe_layers_enum"), len(layers_of(values))
    if said is None:
        return {*range(1, count)}
    listed = said.split(",") if isinstance(said, str) else said
    known = {str(index): index for index in range(count)}
    named = [str(each).strip() for each in listed] if isinstance(listed, list) else [""]
    if not {*named} <= {*known} or len({*named}) != len(named):
        raise InvalidModel("moe_layers_enum", said, f"give different layers from 0 to {count - 1}")
    return {known[each] for each in named}


MIXTRAL = Family(
    "mixtral", _mixtral, ("Mixtral",), ("mixtral",), (),
    {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
        "hidden_act": "silu", "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "num_experts_per_tok": 2, "num_local_experts": 8,
        "rope_theta": 1e6, "bos_token_id": 1, "eos_token_id": 2,
    },
    frozenset({"head_dim", "sliding_window"}),
    names=LLAMA_NAMES | {
        "block_sparse_moe.gate": "router", "block_sparse_moe.experts.*.w1": "experts.*.gate",
        "block_sparse_moe.experts.*.w3": "experts.*.up",
        "block_sparse_moe.experts.*.w2": "experts.*.down",
    },
)  # fmt: skip
GPT_OSS = Family(
    "gpt-oss", _gpt_oss, ("GptOss",), ("gpt_oss",), ("gpt-oss",),
    {
        "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880,
        "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "attention_bias": True, "sliding_window": 128,
        "num_experts_per_tok": 4, "num_local_experts": 128, "rope_theta": 150000.0,
    },
    frozenset({"sliding_window", "layer_types"}),
    names=LLAMA_NAMES | {
        "self_attn.sinks": "sinks", "mlp.router": "router",
        "mlp.experts.gate_up_proj": "experts.gate_up", "mlp.experts.down_proj": "experts.down",
        "mlp.experts.gate_up_proj_bias": "experts.gate_up_bias",
        "mlp.experts.down_proj_bias": "experts.down_bias",
    },
    split=_oss_experts,
    gguf_names={"post_attention_norm": "mlp_norm"},
)  # fmt: skip
STEP3 = Family(
    "step3", _step3, ("Step3Text",), ("step3_text",), (),
    {
        "vocab_size": 128815, "hidden_size": 7168, "intermediate_size": 18432,
        "num_hidden_layers": 61, "num_attention_heads": 64, "num_attention_groups": 1,
        "head_dim": 256, "share_q_dim": 2048, "max_position_embedding": 65536,
        "rms_norm_eps": 1e-5, "rope_theta": 5e5, "hidden_act": "silu", "moe_num_experts": 48,
        "moe_top_k": 3, "moe_intermediate_size": 5120, "share_expert_dim": 5120,
        "norm_expert_weight": False, "moe_layers_enum": [*range(4, 60)],
        "tie_word_embeddings": False,
    },
    frozenset({"share_q_dim", "moe_layers_enum"}),
    names=LLAMA_NAMES | {
        "self_attn.q_proj": "q_down", "self_attn.inter_norm": "q_inner_norm", "self_attn.wq": "q",
        "moe.gate": "router", "moe.gate_proj": "experts.gate", "moe.up_proj": "experts.up",
        "moe.down_proj": "experts.down", "share_expert.gate_proj": "shared.gate",
        "share_expert.up_proj": "shared.up", "share_expert.down_proj": "shared.down",
    },
)  # fmt: skip
FAMILIES = (MIXTRAL, GPT_OSS, STEP3)
