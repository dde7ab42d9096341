"""Families with LayerNorm: GPT-2, GPT-NeoX, GPT-J, CodeGen, BLOOM, StarCoder2, StableLM, Cohere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
)  # fmt: skip
from paradecode.models.folder_rope import rope_of
from paradecode.models.metadata import Metadata
from paradecode.models.parts import Layer
from paradecode.models.rope import Rope


def _layer_norms(values: Metadata, bias: bool = True) -> Fields:
    said = next((values.number(key) for key in ("layer_norm_epsilon", "norm_epsilon")
                 if key in values), values.number("layer_norm_eps", 1e-5))  # fmt: skip
    return {"norm_kind": "layer", "norm_bias": bias, "norm_eps": said}


def _inner(values: Metadata) -> None:
    """Fill in the inner width of an MLP, which is four times the model's width by default."""
    if values.get("intermediate_size") is None:
        values["intermediate_size"] = 4 * values.whole("hidden_size")


def _gpt2(values: Metadata) -> Fields:
    for key, usual in (("scale_attn_by_inverse_layer_idx", False), ("scale_attn_weights", True),
                       ("add_cross_attention", False)):  # fmt: skip
        if values.flag(key, usual) != usual:
            raise InvalidModel(key, not usual, f"only models with {usual} are known")
    _inner(values)
    attention = attention_of(values, None, bias=True, output_bias=True)
    feed = feed_of(values, "activation_function", gated=False, bias=True)
    stack = (Layer((attention, feed)),) * len(layers_of(values))
    more = _layer_norms(values) | {"positions": values.whole("max_position_embeddings")}
    return common(values, stack, **more)


def _neox(values: Metadata) -> Fields:
    _inner(values)
    if "rotary_pct" in values:
        values["partial_rotary_factor"] = values["rotary_pct"]
    if "rotary_emb_base" in values:
        values["rope_theta"] = values["rotary_emb_base"]
    biased = values.flag("attention_bias", True)
    rope = rope_of(values, head_sizes(values)[2])
    attention = attention_of(values, rope, bias=biased, output_bias=biased)
    feed = feed_of(values, gated=False, bias=True)
    side = values.flag("use_parallel_residual", True)
    layer = Layer(((attention, feed),) if side else (attention, feed))
    return common(values, (layer,) * len(layers_of(values)), **_layer_norms(values))


def _gptj(values: Metadata) -> Fields:
    """GPT-J and CodeGen: parts side by side behind one norm."""
    _inner(values)
    size = head_sizes(values)[2]
    rope = Rope(dim=min(values.whole("rotary_dim", size), size))
    attention = attention_of(values, rope, bias=False, output_bias=False)
    feed = feed_of(values, "activation_function", gated=False, bias=True, norm="shared")
    stack = (Layer(((attention, feed),)),) * len(layers_of(values))
    return common(values, stack, head_bias=True, **_layer_norms(values))


def _bloom(values: Metadata) -> Fields:
    """BLOOM (arXiv 2211.05100): ALiBi and a norm of the embeddings."""
    if values.flag("apply_residual_connection_post_layernorm"):
        key = "apply_residual_connection_post_layernorm"
        raise InvalidModel(key, True, "only models with false are known")
    _inner(values)
    values.setdefault("max_position_embeddings", values.whole("seq_length", 2048))
    attention = attention_of(values, None, alibi=True, bias=True, output_bias=True)
    feed = feed_of(values, gated=False, bias=True)
    stack = (Layer((attention, feed)),) * len(layers_of(values))
    return common(values, stack, embed_norm=True, **_layer_norms(values))


def _starcoder2(values: Metadata) -> Fields:
    biased = values.flag("use_bias", True)
    attention = attention_of(
        values, rope_of(values, head_sizes(values)[2]), bias=biased, output_bias=biased,
        window=values.whole("sliding_window", 0),
    )  # fmt: skip
    feed = feed_of(values, gated=False, bias=biased)
    stack = (Layer((attention, feed)),) * len(layers_of(values))
    return common(values, stack, **_layer_norms(values))


def _stablelm(values: Metadata) -> Fields:
    if values.flag("qk_layernorm"):
        fix = "norms of each head with gains of its own are not known"
        raise InvalidModel("qk_layernorm", True, fix)
    values.setdefault("partial_rotary_factor", 0.25)
    side = values.flag("use_parallel_residual")
    attention = attention_of(
        values, rope_of(values, head_sizes(values)[2]), output_bias=False,
        bias=values.flag("use_qkv_bias") or values.flag("attention_bias"),
    )  # fmt: skip
    feed = feed_of(values, norm="shared" if side else "before")
    layer = Layer(((attention, feed),) if side else (attention, feed))
    return common(values, (layer,) * len(layers_of(values)), **_layer_norms(values))


def _cohere(values: Metadata) -> Fields:
    """Command R and Aya, and Command R7B, whose layers without a window have no positions."""
    if values.flag("use_qk_norm"):
        fix = "norms of each head with gains of its own are not known"
        raise InvalidModel("use_qk_norm", True, fix)
    window = values.whole("sliding_window", 0)
    attention = attention_of(values, rope_of(values, head_sizes(values)[2]))
    feed = feed_of(values, norm="shared")
    near, far = replace(attention, window=window), replace(attention, rope=None)
    slides = sliding_layers(values, values.whole("sliding_window_pattern", 4)) if window else []
    kinds = [near if one else far for one in slides] or [attention] * len(layers_of(values))
    stack = tuple(Layer(((kind, feed),)) for kind in kinds)
    factor = values.number("logit_scale", values.number("logits_scaling", 0.0625))
    return common(values, stack, logit_factor=factor, **_layer_norms(values, bias=False))


_GPT_KEYS: dict[str, Any] = {
    "bos_token_id": 50256, "eos_token_id": 50256, "activation_function": "gelu_new",
    "hidden_act": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-5,
}  # fmt: skip
_HIDDEN = frozenset({"intermediate_size"})
_GPTJ_NAMES = {
    "ln_1": "attn_norm", "attn.q_proj": "q", "attn.k_proj": "k", "attn.v_proj": "v",
    "attn.out_proj": "o", "attn.qkv_proj": "q|v|k", "mlp.fc_in": "up", "mlp.fc_out": "down",
    "attn.causal_mask": "", "attn.masked_bias": "", "attn.bias": "",
}  # fmt: skip
_GPTJ_OUTSIDE = {"transformer.wte": "embed", "transformer.ln_f": "norm", "lm_head": "head"}
GPT2 = Family(
    "gpt2", _gpt2, ("GPT2LMHeadModel",), ("gpt2",), ("gpt2",),
    _GPT_KEYS | {
        "vocab_size": 50257, "max_position_embeddings": 1024, "hidden_size": 768,
        "num_hidden_layers": 12, "num_attention_heads": 12, "tie_word_embeddings": True,
    },
    _HIDDEN, layers="transformer.h.",
    names={
        "ln_1": "attn_norm", "attn.c_attn": "q+k+v", "attn.c_proj": "o", "ln_2": "mlp_norm",
        "mlp.c_fc": "up", "mlp.c_proj": "down", "attn.bias": "", "attn.masked_bias": "",
    },
    outside=_GPTJ_OUTSIDE | {"transformer.wpe": "positions"},
    transposed=frozenset({"q+k+v", "o", "up", "down"}),
)  # fmt: skip
NEOX = Family(
    "gptneox", _neox, ("GPTNeoX",), ("gpt_neox",), ("gptneox",),
    {
        "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44,
        "num_attention_heads": 64, "intermediate_size": 24576, "hidden_act": "gelu",
        "max_position_embeddings": 2048, "layer_norm_eps": 1e-5, "bos_token_id": 0,
        "eos_token_id": 2, "tie_word_embeddings": False, "use_parallel_residual": True,
        "attention_bias": True, "partial_rotary_factor": 0.25,
    },
    layers="gpt_neox.layers.",
    names={
        "input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm",
        "attention.query_key_value": "q/k/v", "attention.dense": "o",
        "mlp.dense_h_to_4h": "up", "mlp.dense_4h_to_h": "down", "attention.bias": "",
        "attention.masked_bias": "", "attention.rotary_emb.inv_freq": "",
    },
    outside={"gpt_neox.embed_in": "embed", "gpt_neox.final_layer_norm": "norm",
             "embed_out": "head"},
)  # fmt: skip
GPTJ = Family(
    "gptj", _gptj, ("GPTJ",), ("gptj",), (),
    _GPT_KEYS | {
        "vocab_size": 50400, "max_position_embeddings": 2048, "hidden_size": 4096,
        "num_hidden_layers": 28, "num_attention_heads": 16, "rotary_dim": 64,
        "tie_word_embeddings": False,
    },
    _HIDDEN, _GPTJ_NAMES, _GPTJ_OUTSIDE, "transformer.h.", interleaved=True,
)  # fmt: skip
CODEGEN = replace(GPTJ, name="codegen", classes=("CodeGen",), model_types=("codegen",))
BLOOM = Family(
    "bloom", _bloom, ("Bloom",), ("bloom",), ("bloom",),
    {
        "vocab_size": 250880, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
        "layer_norm_epsilon": 1e-5, "bos_token_id": 1, "eos_token_id": 2,
        "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True,
    },
    _HIDDEN, layers="transformer.h.",
    names={
        "input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm",
        "self_attention.query_key_value": "q/k/v", "self_attention.dense": "o",
        "mlp.dense_h_to_4h": "up", "mlp.dense_4h_to_h": "down",
    },
    outside={
        "transformer.word_embeddings": "embed", "transformer.ln_f": "norm", "lm_head": "head",
        "transformer.word_embeddings_layernorm": "embed_norm",
    },
)  # fmt: skip
STARCODER2 = Family(
    "starcoder2", _starcoder2, ("Starcoder2",), ("starcoder2",), ("starcoder2",),
    {
        "vocab_size": 49152, "hidden_size": 3072, "intermediate_size": 12288,
        "num_hidden_layers": 30, "num_attention_heads": 24, "num_key_value_heads": 2,
        "hidden_act": "gelu_pytorch_tanh", "max_position_embeddings": 4096, "norm_epsilon": 1e-5,
        "bos_token_id": 50256, "eos_token_id": 50256, "use_bias": True,
        "tie_word_embeddings": True,
    },
    frozenset({"sliding_window"}),
    names=LLAMA_NAMES | {"mlp.c_fc": "up", "mlp.c_proj": "down"},
)  # fmt: skip
STABLELM = Family(
    "stablelm", _stablelm, ("StableLm",), ("stablelm",), ("stablelm",),
    {
        "vocab_size": 50304, "hidden_size": 2560, "intermediate_size": 6912,
        "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 32,
        "hidden_act": "silu", "max_position_embeddings": 4096, "layer_norm_eps": 1e-5,
        "tie_word_embeddings": False, "use_qkv_bias": False, "qk_layernorm": False,
        "use_parallel_residual": False, "bos_token_id": 0, "eos_token_id": 0,
    },
)  # fmt: skip
_COHERE: dict[str, Any] = {
    "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528,
    "num_hidden_layers": 40, "num_attention_heads": 64, "hidden_act": "silu",
    "max_position_embeddings": 8192, "layer_norm_eps": 1e-5, "bos_token_id": 5,
    "eos_token_id": 255001, "tie_word_embeddings": True, "attention_bias": False,
}  # fmt: skip
COHERE = Family(
    "cohere", _cohere, ("Cohere",), ("cohere",), ("command-r",), _COHERE | {"logit_scale": 0.0625},
    frozenset({"num_key_value_heads", "use_qk_norm"}), interleaved=True, gguf_interleaved=True,
    gguf_facts={"logit_scale": "logit_scale"},
)  # fmt: skip
COHERE2 = replace(
    COHERE, name="cohere2", classes=("Cohere2",), model_types=("cohere2",), gguf=("cohere2",),
    defaults=_COHERE | {"sliding_window": 4096, "logit_scale": 0.0625},
    nullable=frozenset({"num_key_value_heads", "sliding_window", "layer_types"}),
)  # fmt: skip
FAMILIES = (GPT2, NEOX, GPTJ, CODEGEN, BLOOM, STARCODER2, STABLELM, COHERE, COHERE2)
