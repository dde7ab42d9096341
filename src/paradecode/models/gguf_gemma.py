"""DiffusionGemma in GGUF files, in the form of llama.cpp's pull requests 24423 and 24427."""

from __future__ import annotations

import numpy as np

from paradecode.core.errors import InvalidModel
from paradecode.models.config import ModelConfig, Rope
from paradecode.models.diffusion.diffusion_gemma import DECODER
from paradecode.models.gemma import gemma4_layers, wide_rope
from paradecode.models.gguf_header import Header
from paradecode.models.mixture import MOST, Mixture
from paradecode.models.parts import Attention

ARCHITECTURE = "diffusion-gemma"
NAMES = {
    "self_cond_pre_norm.weight": "guess.norm", "self_cond_gate.weight": "guess.gate",
    "self_cond_up.weight": "guess.up", "self_cond_down.weight": "guess.down",
}  # fmt: skip
"""Name in the file -> our name, beside the names of other architectures."""
LAYER_NAMES = {
    "post_attention_norm.weight": "after_attn", "post_ffw_norm_1.weight": "after_dense",
    "pre_ffw_norm_2.weight": "experts_norm", "post_ffw_norm_2.weight": "after_experts",
    "post_ffw_norm.weight": "after_mlp", "layer_output_scale.weight": "canvas_scale",
    "enc_layer_output_scale.weight": "scale", "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.gain", "ffn_gate_up_exps.weight": "experts.gate_up",
}  # fmt: skip
_SAMPLER = {
    "eb_max_steps": "steps", "eb_entropy_bound": "entropy", "eb_t_max": "hottest",
    "eb_t_min": "coolest", "eb_stability_threshold": "stable",
    "eb_confidence_threshold": "confidence",
}  # fmt: skip
"""Key of the file, after ``diffusion.`` -> setting of the method."""
STILL = 1e6
"""An angle divisor of at least this means that a pair is not rotated; llama.cpp writes 1e30."""


def gemma_config(name: str, header: Header, vocabulary: int, factors: np.ndarray) -> ModelConfig:
    """Return the configuration that a file's fields describe.

    Args:
        vocabulary: number of rows of the embedding matrix.
        factors: the tensor ``rope_freqs.weight``: divisors of angles in layers with full attention.

    Raises:
        InvalidModel: a value is missing, out of range or not supported.
    """
    fields = header.fields

    def need(key: str, default: int | None = None) -> int:
        return fields.whole(f"{ARCHITECTURE}.{key}", default)

    for key in ("embedding_length_per_layer_input", "attention.shared_kv_layers"):
        if need(key, 0):
            raise InvalidModel(f"{ARCHITECTURE}.{key}", need(key), "only models without are known")
    layers = need("block_count")
    sliding = _each(header, "attention.sliding_window_pattern", layers)
    groups = _each(header, "attention.head_count_kv", layers)
    full = frozenset(np.flatnonzero(sliding == 0).tolist())
    if not 0 < len(full) < layers:
        fix = "some layers must see a window, and some the whole text"
        raise InvalidModel(f"{ARCHITECTURE}.attention.sliding_window_pattern", sliding, fix)
    narrow, wide = (set(groups[sliding == kind].tolist()) for kind in (1, 0))
    if len(narrow) != 1 or len(wide) != 1:
        fix = "layers of a kind must have as many heads as each other"
        raise InvalidModel(f"{ARCHITECTURE}.attention.head_count_kv", groups, fix)
    size = need("attention.key_length_swa")
    wide_size, heads = need("attention.key_length"), need("attention.head_count")
    near = Attention(
        heads, narrow.pop(), size,
        rope=Rope(fields.number(f"{ARCHITECTURE}.rope.freq_base_swa", 1e4), size),
        window=need("attention.sliding_window"),
    )  # fmt: skip
    theta = fields.number(f"{ARCHITECTURE}.rope.freq_base", 1e6)
    turned = _turned(factors, wide_size)
    far = Attention(
        heads, wide.pop(), wide_size, rope=wide_rope(theta, wide_size, turned), keys_as_values=True
    )
    mixture = Mixture(
        min(need("expert_count"), MOST), need("expert_used_count"),
        need("expert_feed_forward_length"), normalised=True, scaled=True,
    )  # fmt: skip
    hidden = need("embedding_length")
    return ModelConfig(
        fields.text("general.name") or name, "diffusion-gemma", vocabulary, hidden,
        gemma4_layers(layers, full, near, far, need("feed_forward_length"), mixture),
        need("context_length"),
        norm_eps=fields.number(f"{ARCHITECTURE}.attention.layer_norm_rms_epsilon", 1e-6),
        embed_factor=hidden**0.5, tied_head=True,
        softcap=fields.number(f"{ARCHITECTURE}.final_logit_softcapping", 30.0),
        canvas_length=fields.whole("diffusion.canvas_length", 256, 1), decoder=_decoder(header),
    )  # fmt: skip


def _each(header: Header, key: str, layers: int) -> np.ndarray:
    """Return a field that has a number for each layer."""
    value = header.fields.get(f"{ARCHITECTURE}.{key}")
    if not isinstance(value, np.ndarray) or len(value) != layers or value.dtype.kind not in "iu":
        fix = f"the file must hold a number of each of {layers} layers here"
        raise InvalidModel(f"{ARCHITECTURE}.{key}", value, fix)
    return value.astype(np.int64)


def _turned(factors: np.ndarray, size: int) -> int:
    """Return how many of a head's first pairs are rotated in layers with full attention."""
    turned = int((factors < STILL).sum())
    known = (factors[:turned] == 1).all() and (factors[turned:] >= STILL).all()
    if len(factors) != size // 2 or not known:
        fix = f"{size // 2} numbers are known here: 1 for pairs that turn, then 1e30"
        raise InvalidModel("rope_freqs.weight", factors.tolist()[:8], fix)
    return turned


def _decoder(header: Header) -> str:
    """Return the spec of the method, with the settings that the file has."""
    said = [
        f"{own}={header.fields[key]:g}"
        for stored, own in _SAMPLER.items()
        if (key := f"diffusion.{stored}") in header.fields and header.fields.number(key, 0.0) >= 0
    ]
    return f"{DECODER}({','.join(said)})" if said else DECODER
