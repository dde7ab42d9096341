"""Gemma 4's layers, which DiffusionGemma shares (see :mod:`paradecode.models.parts`)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from paradecode.core.errors import InvalidModel
from paradecode.models.metadata import Metadata
from paradecode.models.mixture import MOST, MOST_LAYERS, Mixture
from paradecode.models.parts import Attention, Feed, Layer, Part, TokenInput
from paradecode.models.rope import Rope

FULL, SLIDING = "full_attention", "sliding_attention"
WIDE, MOST_HEAD = 512, 1024
"""Default and largest size of a head in layers with full attention."""
PERIOD = 6
"""One in this many layers has full attention, unless config.json lists the kinds of layers."""


def gemma4_layers(
    layers: int, full: Collection[int], near: Attention, far: Attention, size: int,
    mixture: Mixture | None, shared: int = 0, shared_size: int = 0, token_width: int = 0,
) -> tuple[Layer, ...]:  # fmt: skip
    """Return the layers of a Gemma 4.

    Args:
        full: layers with full attention.
        near: attention of the layers with a window; its norms and its scale do not count.
        far: the same of the layers with full attention.
        size: inner width of the MLP.
        mixture: the experts beside the MLP, or None.
        shared: how many of the last layers read the keys of the last layer of their kind before.
        shared_size: inner width of the MLP in these layers; 0: ``size``.
        token_width: width of the tokens' second embeddings; 0: there are none.
    """
    first = layers - shared
    last = {wide: max((i for i in range(first) if (i in full) == wide), default=-1)
            for wide in (False, True)}  # fmt: skip

    def layer(index: int) -> Layer:
        wide = index in full
        given, reads = far if wide else near, index >= first
        attention = Attention(
            given.heads, given.kv_heads, given.head_dim, norm="both", rope=given.rope,
            window=given.window, scale=1.0, qk_norm="head", value_norm=True,
            keys_as_values=given.keys_as_values, keys_of=last[wide] if reads else -1,
        )  # fmt: skip
        inner = shared_size if reads and shared_size else size
        parts: list[Part] = [attention, Feed(inner, norm="both", activation="gelu_tanh",
                                             mixture=mixture)]  # fmt: skip
        if token_width:
            parts.append(TokenInput(token_width))
        return Layer(tuple(parts), scaled=True)

    return tuple(map(layer, range(layers)))


def gemma4_stack(values: Metadata) -> tuple[Layer, ...]:
    """Return the layers that config.json's ``text_config`` describes.

    Raises:
        InvalidModel: a value is missing, out of range or not supported.
    """
    if values.get("use_bidirectional_attention") == "all" or values.flag("attention_bias"):
        fix = "only causal encoders without biases are known"
        raise InvalidModel("use_bidirectional_attention", "all", fix)
    if values.get("hidden_activation") != "gelu_pytorch_tanh":
        raise InvalidModel("hidden_activation", values["hidden_activation"], "only gelu is known")
    layers = values.whole("num_hidden_layers", None, 1, MOST_LAYERS)
    full = _full(values, layers)
    sliding, wide = (_rope(values, kind) for kind in (SLIDING, FULL))
    size, groups = _wide_heads(values, full)
    if sliding["rope_type"] != "default" or wide["rope_type"] not in ("default", "proportional"):
        fix = "use default, and for full_attention default or proportional"
        raise InvalidModel("rope_type", [sliding["rope_type"], wide["rope_type"]], fix)
    heads = values.whole("num_attention_heads", None, 1, 1024)
    head_dim = values.whole("head_dim", None, 2, MOST_HEAD)
    near = Attention(
        heads, values.whole("num_key_value_heads"), head_dim,
        rope=Rope(sliding.number("rope_theta", 1e4), head_dim),
        window=values.whole("sliding_window", None, 1, 1 << 24),
    )  # fmt: skip
    turned = int(wide.number("partial_rotary_factor", 1.0) * size // 2)
    far = Attention(
        heads, groups, size, rope=wide_rope(wide.number("rope_theta", 1e6), size, turned),
        keys_as_values=values.flag("attention_k_eq_v"),
    )  # fmt: skip
    mixture = Mixture(
        values.whole("num_experts", None, 1, MOST), values.whole("top_k_experts", None, 1, MOST),
        values.whole("moe_intermediate_size", None, 1, MOST), normalised=True, scaled=True,
    ) if values.flag("enable_moe_block") else None  # fmt: skip
    inner = values.whole("intermediate_size")
    return gemma4_layers(
        layers, full, near, far, inner, mixture,
        shared=values.whole("num_kv_shared_layers", 0, 0, layers - 1),
        shared_size=2 * inner if values.flag("use_double_wide_mlp") else 0,
        token_width=values.whole("hidden_size_per_layer_input", 0),
    )  # fmt: skip


def wide_rope(theta: float, head_dim: int, turned: int) -> Rope:
    """Return the rotary positions of layers with full attention.

    Of the ``head_dim / 2`` pairs, which lie over the whole head, only the first ``turned`` turn.
    """
    if not 0 <= turned <= head_dim // 2:
        fix = f"a head of {head_dim} numbers has {head_dim // 2} pairs"
        raise InvalidModel("partial_rotary_factor", turned, fix)
    return Rope(theta=theta, dim=head_dim, still=head_dim // 2 - turned)


def _full(values: Metadata, layers: int) -> set[int]:
    kinds = values.get("layer_types")
    if kinds is None:
        kinds = [SLIDING if (i + 1) % PERIOD else FULL for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or {*map(str, kinds)} - {FULL, SLIDING}:
        fix = f"give {layers} of {FULL} and {SLIDING}"
        raise InvalidModel("layer_types", kinds, fix)
    return {i for i, kind in enumerate(kinds) if kind == FULL} | {layers - 1}


def _wide_heads(values: Metadata, full: set[int]) -> tuple[int, int]:
    """Return the size and the number of the key heads in layers with full attention."""
    usual = values.whole("num_key_value_heads")
    size = values.whole("global_head_dim", WIDE, 2, MOST_HEAD)
    groups = values.whole("num_global_key_value_heads", usual)
    own = values.get("per_layer_config")
    if own is None:
        return size, groups
    named = [own.get(str(layer)) for layer in sorted(full)] if isinstance(own, dict) else [None]
    one = named[0]
    if not isinstance(one, dict) or any(each != one for each in named):
        fix = f"all layers of {FULL} must be described alike"
        raise InvalidModel("per_layer_config", own, fix)
    one = Metadata(one)
    return one.whole("head_dim", size, 2, MOST_HEAD), one.whole("num_key_value_heads", groups)


def _rope(values: Metadata, kind: str) -> Metadata:
    usual: dict[str, Any] = {"rope_type": "default"}
    if kind == FULL:
        usual = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
    said = values.get("rope_parameters")
    said = {} if said is None else said
    own = said.get(kind, usual) if isinstance(said, dict) else None
    if not isinstance(own, dict):
        raise InvalidModel("rope_parameters", said, f"it must say what {kind} has")
    return Metadata({"rope_type": "default", **own})
