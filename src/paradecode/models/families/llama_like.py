"""Families that differ from Llama by a few facts: SmolLM3, Granite, OLMo 2, MiniCPM and others."""

from __future__ import annotations

import math
from dataclasses import replace

from paradecode.core.errors import InvalidModel
from paradecode.models.families.experts import rectified_experts, rectified_feed
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
)  # fmt: skip
from paradecode.models.folder_rope import context_of, rope_of
from paradecode.models.metadata import Metadata
from paradecode.models.parts import Layer

_SIZES = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048, "hidden_act": "silu",
    "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
}  # fmt: skip


def _smollm3(values: Metadata) -> Fields:
    rope, count = rope_of(values, head_sizes(values)[2]), len(layers_of(values))
    every = values.whole("no_rope_layer_interval", 4, 1)
    turned = values.get("no_rope_layers")
    if turned is None:
        turned = [int((index + 1) % every != 0) for index in range(count)]
    if not isinstance(turned, list) or len(turned) != count or {*map(repr, turned)} - {"0", "1"}:
        raise InvalidModel("no_rope_layers", turned, f"give a 0 or a 1 for each of {count} layers")
    window = values.whole("sliding_window", 0) if values.flag("use_sliding_window") else 0
    slides = sliding_layers(values, 0) if values.get("layer_types") else [False] * count
    attention, feed = attention_of(values, rope), feed_of(values, bias=values.flag("mlp_bias"))
    stack = tuple(
        Layer((
            replace(attention, rope=rope if turns else None, window=window if near else 0), feed,
        ))
        for turns, near in zip(turned, slides)
    )  # fmt: skip
    return common(values, stack)


def _granite(values: Metadata) -> Fields:
    """Granite 3 and 4: four factors."""
    rope = rope_of(values, head_sizes(values)[2])
    scale = values.number("attention_multiplier", 1.0)
    made = values.number("residual_multiplier", 1.0)
    layer = Layer((
        attention_of(values, rope, scale=scale, out_factor=made),
        feed_of(values, bias=values.flag("mlp_bias"), out_factor=made),
    ))  # fmt: skip
    return common(
        values, (layer,) * len(layers_of(values)),
        embed_factor=values.number("embedding_multiplier", 1.0),
        logit_factor=1 / (values.number("logits_scaling", 1.0) or 1.0),
    )  # fmt: skip


def _olmo2(values: Metadata) -> Fields:
    """OLMo 2 and 3: norms behind the parts, and one norm over all heads."""
    rope = rope_of(values, head_sizes(values)[2])
    attention = attention_of(values, rope, norm="after", qk_norm="all")
    feed, window = feed_of(values, norm="after"), values.whole("sliding_window", 0)
    near = replace(attention, window=window)
    slides = sliding_layers(values, 4) if window else [False] * len(layers_of(values))
    return common(values, tuple(Layer((near if one else attention, feed)) for one in slides))


def _exaone4(values: Metadata) -> Fields:
    """EXAONE 4: norms behind the parts; where windows are, layers without have no positions."""
    rope, window = rope_of(values, head_sizes(values)[2]), values.whole("sliding_window", 0)
    attention = attention_of(values, rope, norm="after", qk_norm="head")
    feed, count = feed_of(values, norm="after"), len(layers_of(values))
    if not window:
        return common(values, (Layer((attention, feed)),) * count)
    near, far = replace(attention, window=window), replace(attention, rope=None)
    slides = sliding_layers(values, values.whole("sliding_window_pattern", 4))
    return common(values, tuple(Layer((near if one else far, feed)) for one in slides))


def _plain(values: Metadata) -> Fields:
    """Llama's layers: ERNIE 4.5, InternLM2, Mistral Nemo and Falcon3."""
    rope = rope_of(values, head_sizes(values)[2])
    biased = values.flag("use_bias") or values.flag("bias") or values.flag("attention_bias")
    attention = attention_of(values, rope, bias=biased, output_bias=biased)
    feed = feed_of(values, bias=values.flag("use_bias") or values.flag("mlp_bias"))
    return common(values, (Layer((attention, feed)),) * len(layers_of(values)))


def _hunyuan(values: Metadata) -> Fields:
    """Hunyuan dense: the norms of queries and keys come behind the rotation."""
    size = head_sizes(values)[2]
    rope = rope_of(values, size)
    attention = attention_of(values, rope, qk_norm="head", norm_turned=True)
    return common(values, (Layer((attention, feed_of(values))),) * len(layers_of(values)))


def _ministral3(values: Metadata) -> Fields:
    """Ministral 3: queries grow with their position (``llama_4_scaling_beta``)."""
    said = values.get("rope_parameters") or values.get("rope_scaling") or {}
    known = Metadata(said if isinstance(said, dict) else {})
    rope = rope_of(values, head_sizes(values)[2])
    attention = attention_of(
        values, rope, window=values.whole("sliding_window", 0),
        growth=known.number("llama_4_scaling_beta", 0.0),
        growth_every=known.whole("original_max_position_embeddings", 8192, 1),
    )  # fmt: skip
    return common(values, (Layer((attention, feed_of(values))),) * len(layers_of(values)))


def _minicpm(values: Metadata) -> Fields:
    """MiniCPM (arXiv 2404.06395): factors of embeddings, of parts and of logits.

    BlockFFN's models (arXiv 2507.08771) have its class, and a ``ffn_type`` of their own.
    """
    attends, kind = values.get("attention_type", "vanilla"), values.get("ffn_type", "vanilla")
    if attends != "vanilla":
        raise InvalidModel("attention_type", attends, "only vanilla is known")
    if kind not in ("vanilla", "block"):
        raise InvalidModel("ffn_type", kind, "use vanilla or block")
    rope, count = rope_of(values, head_sizes(values)[2]), len(layers_of(values))
    depth = values.number("scale_depth", 1.4) / math.sqrt(count)
    width = values.whole("hidden_size") / values.number("dim_model_base", 256.0)
    feed = (
        rectified_feed(values)
        if kind == "block"
        else feed_of(values, gated=values.flag("ffn_gated", True))
    )
    made = values.number("residual_multiplier", depth)
    layer = Layer((attention_of(values, rope, out_factor=made), replace(feed, out_factor=made)))
    embed = values.number("embedding_multiplier", values.number("scale_emb", 12.0))
    said = values.number("logits_scaling", width)
    return common(values, (layer,) * count, embed_factor=embed, logit_factor=1 / said)


def _glm4(values: Metadata) -> Fields:
    """GLM-4-0414: norms on both sides, and half of each head rotated."""
    values.setdefault("partial_rotary_factor", 0.5)
    rope = rope_of(values, head_sizes(values)[2])
    attention = attention_of(values, rope, norm="both", output_bias=False)
    return common(
        values, (Layer((attention, feed_of(values, norm="both"))),) * len(layers_of(values))
    )


def _phi3(values: Metadata) -> Fields:
    """Phi-3, Phi-3.5 and Phi-4-mini: joined projections, and long rotary positions."""
    rope = rope_of(values, head_sizes(values)[2])
    attention = attention_of(
        values, rope, window=values.whole("sliding_window", 0), bias=False, output_bias=False
    )
    return common(
        values, (Layer((attention, feed_of(values))),) * len(layers_of(values)),
        context_length=context_of(values, rope),
    )  # fmt: skip


_BEHIND = LLAMA_NAMES | {
    "post_attention_layernorm": "after_attn", "post_feedforward_layernorm": "after_mlp",
}  # fmt: skip
_NO_HEADS = frozenset({"num_key_value_heads"})
SMOLLM3 = Family(
    "smollm3", _smollm3, ("SmolLM3",), ("smollm3",), ("smollm3",),
    {
        **_SIZES, "vocab_size": 128256, "hidden_size": 2048, "num_hidden_layers": 36,
        "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "no_rope_layer_interval": 4,
        "use_sliding_window": False, "rope_theta": 2e6,
    },
    _NO_HEADS | {"sliding_window", "no_rope_layers", "layer_types"}, gguf_interleaved=True,
)  # fmt: skip
GRANITE = Family(
    "granite", _granite, ("Granite",), ("granite",), ("granite",),
    {**_SIZES, "vocab_size": 32000, "rms_norm_eps": 1e-6}, _NO_HEADS, gguf_interleaved=True,
)  # fmt: skip
OLMO2 = Family(
    "olmo2", _olmo2, ("Olmo2",), ("olmo2",), ("olmo2",), {**_SIZES, "vocab_size": 50304},
    _NO_HEADS, names=_BEHIND,
)  # fmt: skip
EXAONE4 = Family(
    "exaone4", _exaone4, ("Exaone4",), ("exaone4",), ("exaone4",),
    {
        **_SIZES, "vocab_size": 102400, "intermediate_size": 16384, "num_key_value_heads": 32,
        "sliding_window": 4096, "sliding_window_pattern": 4,
    },
    frozenset({"sliding_window", "layer_types", "sliding_window_pattern"}), names=_BEHIND,
)  # fmt: skip
ERNIE = Family(
    "ernie4_5", _plain, ("Ernie4_5",), ("ernie4_5",), ("ernie4_5",),
    {
        **_SIZES, "vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 18, "num_attention_heads": 16, "num_key_value_heads": 2,
        "max_position_embeddings": 131072, "tie_word_embeddings": True, "use_bias": False,
        "head_dim": 128, "rope_theta": 5e5,
    },
    _NO_HEADS | {"head_dim", "use_bias"}, interleaved=True, gguf_interleaved=True,
)  # fmt: skip
HUNYUAN = Family(
    "hunyuan", _hunyuan, ("HunYuanDenseV1",), ("hunyuan_v1_dense",), ("hunyuan-dense",),
    {**_SIZES, "vocab_size": 290943}, _NO_HEADS | {"head_dim"},
    names=LLAMA_NAMES | {
        "self_attn.query_layernorm": "q_norm", "self_attn.key_layernorm": "k_norm",
    },
)  # fmt: skip
MINISTRAL3 = Family(
    "ministral3", _ministral3, ("Ministral3",), ("ministral3",), ("mistral3",),
    {
        **_SIZES, "vocab_size": 131072, "intermediate_size": 14336, "num_hidden_layers": 34,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144,
    },
    frozenset({"sliding_window"}), gguf_interleaved=True,
)  # fmt: skip
INTERNLM2 = Family(
    "internlm2", _plain, ("InternLM2",), ("internlm2",), ("internlm2",),
    {
        **_SIZES, "vocab_size": 103168, "num_key_value_heads": None, "bias": False,
        "rms_norm_eps": 1e-6,
    },
    _NO_HEADS, gguf_interleaved=True,
    names={
        "attention_norm": "attn_norm", "ffn_norm": "mlp_norm", "attention.wqkv": "q/k/v",
        "attention.wo": "o", "feed_forward.w1": "gate", "feed_forward.w3": "up",
        "feed_forward.w2": "down",
    },
    outside={"model.tok_embeddings": "embed", "model.norm": "norm", "output": "head"},
)  # fmt: skip
MINICPM = Family(
    "minicpm", _minicpm, ("MiniCPM",), ("minicpm",), ("minicpm",),
    {**_SIZES, "vocab_size": 32000, "rms_norm_eps": 1e-6, "tie_word_embeddings": True}, _NO_HEADS,
    gguf_interleaved=True,
    names=LLAMA_NAMES | {"mlp.router_proj": "router", "mlp.router_norm": "router.norm"},
    split=rectified_experts,
)  # fmt: skip
GLM4 = Family(
    "glm4", _glm4, ("Glm4",), ("glm4",), ("glm4",),
    {
        **_SIZES, "vocab_size": 151552, "intermediate_size": 13696, "num_hidden_layers": 40,
        "num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072,
        "rms_norm_eps": 1.5625e-07, "attention_bias": True,
    },
    names=LLAMA_NAMES | {
        "post_self_attn_layernorm": "after_attn", "post_mlp_layernorm": "after_mlp",
        "mlp.gate_up_proj": "gate+up",
    },
    interleaved=True, gguf_interleaved=True, gguf_names={"ffn_up": "gate+up"},
)  # fmt: skip
PHI3 = Family(
    "phi3", _phi3, ("Phi3",), ("phi3",), ("phi3",),
    {
        **_SIZES, "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192,
        "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
    },
    _NO_HEADS | {"sliding_window"},
    names=LLAMA_NAMES | {"self_attn.qkv_proj": "q+k+v", "mlp.gate_up_proj": "gate+up"},
    gguf_names={"ffn_up": "gate+up"},
)  # fmt: skip
FAMILIES = (SMOLLM3, GRANITE, OLMO2, EXAONE4, ERNIE, HUNYUAN, MINISTRAL3, INTERNLM2, MINICPM, GLM4,
            PHI3)  # fmt: skip
