"""Gemma 1 to 4 (arXiv 2403.08295, 2408.00118, 2503.19786), and DiffusionGemma.

DiffusionGemma is Gemma 4 as an encoder of text, and as a decoder of canvases of random tokens. Its
GGUF files have the form of llama.cpp's pull requests 24423 and 24427.
"""

from __future__ import annotations

from dataclasses import replace

from paradecode.core.errors import InvalidModel
from paradecode.models.families.family import (
    LLAMA_NAMES,
    LLAMA_OUTSIDE,
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
from paradecode.models.gemma import FULL, SLIDING, WIDE, gemma4_stack
from paradecode.models.metadata import Metadata
from paradecode.models.parts import Layer
from paradecode.models.rope import Rope

_BOTH = LLAMA_NAMES | {
    "post_attention_layernorm": "after_attn", "pre_feedforward_layernorm": "mlp_norm",
    "post_feedforward_layernorm": "after_mlp",
}  # fmt: skip


def _embedded(values: Metadata) -> float:
    return float(values.whole("hidden_size") ** 0.5)


def _gemma(values: Metadata) -> Fields:
    attention = attention_of(values, rope_of(values, head_sizes(values)[2]))
    layer = Layer((attention, feed_of(values)))
    return common(values, (layer,) * len(layers_of(values)), embed_factor=_embedded(values))


def _windowed(values: Metadata, every: int, near: Rope, far: Rope, **more: object) -> Fields:
    """Return the layers of Gemma 2 and 3: norms on both sides, and windows in most layers."""
    if values.get("use_bidirectional_attention"):
        fix = "only models that see earlier tokens alone are known"
        raise InvalidModel("use_bidirectional_attention", True, fix)
    # GGUF files leave the scale to the reader; llama.cpp takes it from the size of the model.
    asked = values.number("query_pre_attn_scalar", float(head_sizes(values)[2]))
    attention = attention_of(
        values, far, norm="both", scale=asked**-0.5,
        softcap=values.number("attn_logit_softcapping", 0.0), **more,
    )  # fmt: skip
    window = values.whole("sliding_window", 0)
    feed = feed_of(values, "hidden_activation", norm="both")
    kinds = {False: attention, True: replace(attention, window=window, rope=near)}
    stack = tuple(
        Layer((kinds[slides and window > 0], feed)) for slides in sliding_layers(values, every)
    )
    cap = values.number("final_logit_softcapping", 0.0)
    return common(values, stack, embed_factor=_embedded(values), softcap=cap)


def _gemma2(values: Metadata) -> Fields:
    rope = rope_of(values, head_sizes(values)[2])
    if values.get("gguf") and len(layers_of(values)) == 46:  # The 27B alone scales by its width.
        values["query_pre_attn_scalar"] = values.whole("hidden_size") // head_sizes(values)[0]
    return _windowed(values, 2, rope, rope)


def _gemma3(values: Metadata) -> Fields:
    size = head_sizes(values)[2]
    said = values.get("rope_parameters")
    if isinstance(said, dict) and any(isinstance(one, dict) for one in said.values()):
        near, far = (
            rope_of(Metadata({**values, "rope_parameters": said.get(kind)}), size)
            for kind in ("sliding_attention", "full_attention")
        )
    else:
        far = rope_of(values, size)
        near = Rope(theta=values.number("rope_local_base_freq", 1e4), dim=size)
    if values.get("gguf") and len(layers_of(values)) == 62:  # The 27B alone scales by its width.
        values["query_pre_attn_scalar"] = values.whole("hidden_size") // head_sizes(values)[0]
    return _windowed(values, values.whole("sliding_window_pattern", 6), near, far, qk_norm="head")


def _gemma4(values: Metadata) -> Fields:
    if values.get("gguf"):
        _translate(values)
    stack, width = gemma4_stack(values), values.whole("hidden_size_per_layer_input", 0)
    return common(
        values, stack, embed_factor=_embedded(values),
        softcap=values.number("final_logit_softcapping", 0.0), token_width=width,
        token_rows=values.whole("vocab_size_per_layer_input", values.whole("vocab_size")),
    )  # fmt: skip


def _diffusion(values: Metadata) -> Fields:
    if values.get("gguf"):
        _translate(values)
        for key in ("num_kv_shared_layers", "hidden_size_per_layer_input"):
            if values.whole(key, 0):
                raise InvalidModel(key, values[key], "only models without are known")
    if not values.flag("tie_word_embeddings"):
        raise InvalidModel("tie_word_embeddings", False, "only models of tied weights are known")
    values |= {"enable_moe_block": True, "attention_k_eq_v": True}
    values |= {"num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0}
    said = [f"{own}={values[key]:g}" for key, own in _SAMPLER.items()
            if values.number(key, -1.0) >= 0]  # fmt: skip
    return common(
        values, gemma4_stack(values), embed_factor=_embedded(values),
        softcap=values.number("final_logit_softcapping", 30.0),
        canvas_length=values.whole("canvas_length", 256, 1),
        decoder=f"renoise({','.join(said)})" if said else "renoise",
    )  # fmt: skip


def _translate(values: Metadata) -> None:
    """Bring a GGUF file's facts, some of which are given for each layer, to config.json's form."""
    count = len(layers_of(values))
    slides = values.get("sliding_window_pattern")
    if not isinstance(slides, list) or len(slides) != count:
        fix = f"the file must say which of {count} layers have a window, and which have none"
        raise InvalidModel("attention.sliding_window_pattern", slides, fix)
    values["layer_types"] = [SLIDING if each else FULL for each in slides]
    values["global_head_dim"], values["head_dim"] = values.get("head_dim"), values.get("near_dim")
    given = values.get("num_key_value_heads")
    each = given if isinstance(given, list) else [given] * count
    of = {bool(near): own for near, own in zip(slides, each)}
    if [of.get(bool(near)) for near in slides] != each:
        fix = f"give {count} numbers, which agree in layers of a kind"
        raise InvalidModel("attention.head_count_kv", given, fix)
    values["num_global_key_value_heads"] = of.get(False)
    values["num_key_value_heads"] = of.get(True)
    sizes = values.get("intermediate_size")
    if isinstance(sizes, list):
        values["intermediate_size"] = sizes[0]
        values["use_double_wide_mlp"] = sizes[-1] == 2 * sizes[0]
    wide, turned = values.whole("global_head_dim"), values["rope"]
    plain = [min(one, STILL) for one in turned.factors]
    pairs = sum(one < STILL for one in plain)
    if len(plain) != wide // 2 or plain != sorted(plain) or {*plain} - {1.0, STILL}:
        fix = f"{wide // 2} numbers are known here: 1 for pairs that turn, then 1e30"
        raise InvalidModel("rope_freqs.weight", plain[:8], fix)
    values["rope_parameters"] = {
        FULL: {"rope_type": "proportional", "rope_theta": values.number("rope_theta", 1e6),
               "partial_rotary_factor": 2 * pairs / wide},
        SLIDING: {"rope_type": "default", "rope_theta": values.number("rope_local_base_freq", 1e4)},
    }  # fmt: skip
    values["enable_moe_block"] = values.whole("num_local_experts", 0) > 0
    values["num_experts"] = values.get("num_local_experts")
    values["top_k_experts"] = values.get("num_experts_per_tok")


_DEFAULTS = {
    "vocab_size": 256000, "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "head_dim": 256,
    "tie_word_embeddings": True, "attention_bias": False, "bos_token_id": 2, "eos_token_id": 1,
}  # fmt: skip
GEMMA = Family(
    "gemma", _gemma, ("Gemma",), ("gemma",), ("gemma",),
    {
        **_DEFAULTS, "hidden_size": 3072, "intermediate_size": 24576, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 16, "hidden_act": "gelu_pytorch_tanh",
    },
    frozenset({"use_bidirectional_attention"}), less_one=True,
)  # fmt: skip
_LATER = {
    **_DEFAULTS, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 4096,
    "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
}  # fmt: skip
_NULLABLE = frozenset({
    "sliding_window", "layer_types", "final_logit_softcapping", "attn_logit_softcapping",
    "use_bidirectional_attention",
})  # fmt: skip
GEMMA2 = Family(
    "gemma2", _gemma2, ("Gemma2",), ("gemma2",), ("gemma2",),
    {**_LATER, "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0}, _NULLABLE,
    names=_BOTH, less_one=True,
    gguf_defaults={"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
)  # fmt: skip
GEMMA3 = Family(
    "gemma3", _gemma3, ("Gemma3",), ("gemma3_text",), ("gemma3",),
    {**_LATER, "vocab_size": 262208, "max_position_embeddings": 131072, "rope_theta": 1e6},
    _NULLABLE, names=_BOTH, less_one=True, gguf_defaults={"sliding_window_pattern": 6},
    gguf_facts={"rope.freq_base_swa": "rope_local_base_freq"},
)  # fmt: skip
STILL = 1e6
"""An angle divisor of at least this means that a pair does not turn; llama.cpp writes 1e30."""
GEMMA4 = Family(
    "gemma4", _gemma4, ("Gemma4",), ("gemma4_text",), ("gemma4",),
    {
        **_LATER, "vocab_size": 262144, "num_hidden_layers": 30, "sliding_window": 512,
        "max_position_embeddings": 131072, "vocab_size_per_layer_input": 262144,
        "hidden_size_per_layer_input": 256, "attention_k_eq_v": False, "num_kv_shared_layers": 0,
        "enable_moe_block": False, "use_double_wide_mlp": False, "global_head_dim": WIDE,
    },
    _NULLABLE,
    names=_BOTH | {
        "per_layer_input_gate": "input_gate", "per_layer_projection": "input_out",
        "post_per_layer_input_norm": "after_input", "layer_scalar": "scale",
        "router.proj": "router", "router.scale": "router.scale",
        "router.per_expert_scale": "router.gain", "experts.gate_up_proj": "experts.gate_up",
        "experts.down_proj": "experts.down", "post_feedforward_layernorm_1": "after_dense",
        "post_feedforward_layernorm_2": "after_experts",
        "pre_feedforward_layernorm_2": "experts_norm",
    },
    outside=LLAMA_OUTSIDE | {
        "model.embed_tokens_per_layer": "token_embed",
        "model.per_layer_model_projection": "token_project",
        "model.per_layer_projection_norm": "token_norm",
    },
    gguf_facts={
        "rope.freq_base_swa": "rope_local_base_freq", "attention.key_length_swa": "near_dim",
        "attention.sliding_window_pattern": "sliding_window_pattern",
        "attention.shared_kv_layers": "num_kv_shared_layers",
        "embedding_length_per_layer_input": "hidden_size_per_layer_input",
    },
    gguf_names={
        "inp_gate": "input_gate", "proj": "input_out", "post_norm": "after_input",
        "layer_output_scale": "scale", "ffn_gate_inp.scale": "router.scale",
        "ffn_down_exps.scale": "router.gain",
        "post_ffw_norm_1": "after_dense", "post_ffw_norm_2": "after_experts",
        "pre_ffw_norm_2": "experts_norm", "ffn_gate_up_exps": "experts.gate_up",
    },
)  # fmt: skip
_SAMPLER = {
    "eb_max_steps": "steps", "eb_entropy_bound": "entropy", "eb_t_max": "hottest",
    "eb_t_min": "coolest", "eb_stability_threshold": "stable",
    "eb_confidence_threshold": "confidence",
}  # fmt: skip
"""Fact of a GGUF file -> setting of the method ``renoise``."""
_OUTSIDE = {
    "embed_tokens": "embed", "norm": "norm", "self_conditioning.pre_norm": "guess.norm",
    **{f"self_conditioning.{name}_proj": f"guess.{name}" for name in ("gate", "up", "down")},
}  # fmt: skip
DIFFUSION_GEMMA = replace(
    GEMMA4, name="diffusion-gemma", fields=_diffusion, gguf=("diffusion-gemma",),
    classes=("DiffusionGemmaForBlockDiffusion",), model_types=("diffusion_gemma_text",),
    names={**GEMMA4.names, "layer_scalar": "canvas_scale"}, layers="model.decoder.layers.",
    outside={
        **{f"model.decoder.{module}": own for module, own in _OUTSIDE.items()},
        "model.encoder.language_model.layers.*.layer_scalar": "layers.*.scale", "lm_head": "head",
    },
    gguf_facts={
        **GEMMA4.gguf_facts, "diffusion.canvas_length": "canvas_length",
        **{f"diffusion.{name}": name for name in _SAMPLER},
    },
    gguf_defaults={"rms_norm_eps": 1e-6},
    gguf_names={
        **GEMMA4.gguf_names, "layer_output_scale": "canvas_scale",
        "enc_layer_output_scale": "scale",
    },
)  # fmt: skip
