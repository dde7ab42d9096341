"""Gemma 1, 2 and 3 (arXiv 2403.08295, 2408.00118, 2503.19786)."""

from __future__ import annotations

from dataclasses import replace

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
