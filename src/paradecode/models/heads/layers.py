"""The layers of a head: Llama's and Qwen's, as networks before and after their attention."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.head import Block, Network
from paradecode.models.config import Rope
from paradecode.models.heads.convolution import BlockConvolution
from paradecode.models.heads.layouts import HeadFile
from paradecode.models.heads.networks import HeadTensors, NetworkBuilder
from paradecode.models.heads.parts import HeadParts

Projection = tuple[NDArray[Any], NDArray[Any] | None]
"""Matrix [outputs, inputs] and bias."""


@dataclass(frozen=True)
class HalfSplit:
    """A reordering of a head's numbers after which element i is always rotated with i + size / 2.

    Attention does not change if the numbers of queries and keys are reordered in the same way.
    Pairs that are not rotated have frequency 0.

    Attributes:
        order: old index of each number of a head.
        factor: factor of each number.
        frequencies: frequency of each pair.
    """

    order: NDArray[np.intp]
    factor: NDArray[np.float32]
    frequencies: NDArray[np.float64]

    @staticmethod
    def of(rope: Rope, size: int) -> HalfSplit:
        half, still = rope.dim // 2, (size - rope.dim) // 2
        turning, others = np.arange(rope.dim), np.arange(rope.dim, size)
        order = np.concatenate([turning[:half], others[:still], turning[half:], others[still:]])
        factor = np.where(order < rope.dim, rope.attention_factor, 1.0).astype(np.float32)
        return HalfSplit(order, factor, np.append(rope.inverse_frequencies(), np.zeros(still)))

    def rows(self, weight: NDArray[Any], bias: NDArray[Any] | None) -> Projection:
        """Return the projection for queries or keys, in the new order."""
        made = weight.reshape(-1, len(self.order), weight.shape[1])[:, self.order]
        if bias is not None:
            bias = (bias.reshape(-1, len(self.order))[:, self.order] * self.factor).ravel()
        return (made * self.factor[:, None]).reshape(weight.shape), bias


def layers(
    file: HeadFile, t: HeadTensors, first: NetworkBuilder, into: str, rest: str, width: int,
    normed: bool = False, text: bool = False,
) -> tuple[Block, ...]:  # fmt: skip
    """Build all layers; ``first`` makes the input of the first layer's attention.

    Args:
        into, rest: names of the first attention's input, and of the residual value beside it.
        normed: whether the input is normed already (EAGLE-3's two halves).
        text: whether the layers make keys and values of committed rows separately (DFlash).
    """
    made: list[Block] = []
    while f"layers.{len(made)}.self_attn.q_proj.weight" in t:
        steps = first if not made else NetworkBuilder(state=width)
        x, goes_on = (into, rest) if not made else ("state", "state")
        gain = f"layers.{len(made)}.input_layernorm.weight"
        # EAGLE-1 has no norm before its first attention.
        if (made or not normed) and gain in t:
            x = steps.norm(x, t.gain(gain, width), file.epsilon)
        entering = 2 * width if normed and not made else width
        name = f"layers.{len(made)}."
        made.append(_layer(file, t, name, steps, x, entering, goes_on, width, text))
    return tuple(made)


def _layer(
    file: HeadFile, t: HeadTensors, name: str, steps: NetworkBuilder, x: str, entering: int,
    rest: str, width: int, text: bool,
) -> Block:  # fmt: skip
    heads, kv_heads, size = file.heads, file.kv_heads, file.head_dim
    turn = HalfSplit.of(file.rope, size)
    q_norm, k_norm = (t.maybe(f"{name}self_attn.{p}_norm.weight", size) for p in "qk")
    if q_norm is not None or k_norm is not None:  # The norm takes what the rotation multiplies by.
        q_norm, k_norm = (
            t.gain(f"{name}self_attn.{p}_norm.weight", size)[turn.order] * turn.factor for p in "qk"
        )
        turn = replace(turn, factor=np.ones(size, np.float32))

    def projection(part: str, count: int) -> Projection:
        return t.projection(f"{name}self_attn.{part}_proj", count * size, entering)

    gate = None
    if file.gated:  # Of each head, rows of the query and of the gate.
        both = t(f"{name}self_attn.q_proj.weight", 2 * heads * size, entering)
        both = both.reshape(heads, 2, size, -1)
        gate = both[:, 1].reshape(heads * size, -1)
        q = turn.rows(both[:, 0].reshape(heads * size, -1), None)
    else:
        q = turn.rows(*projection("q", heads))
    k, v = turn.rows(*projection("k", kv_heads)), projection("v", kv_heads)
    mixes, amounts = BlockConvolution.of(file, t, f"{name}attention_conv", width), list[str]()
    if mixes is not None:
        x, own = mixes.before(steps, x)
        amounts = [own]
    steps.add("join", *(steps.linear(x, *each) for each in (q, k, v)), rest, *amounts)

    after = NetworkBuilder(mixed=heads * size, rest=width + (mixes.added if mixes else 0))
    mixed = "mixed"
    if gate is not None:
        gain = t.gain(f"{name}input_layernorm.weight", width)
        opened = after.linear(after.norm("rest", gain, file.epsilon), gate)
        mixed = after.add("multiply", mixed, after.add("sigmoid", opened))
    after_attention(file, t, name, after, mixed, width)
    return Block(
        steps.network(), after.network(), heads, kv_heads, size, turn.frequencies, file.epsilon,
        q_norm, k_norm, _of_text(width, k, v) if text else None, k_norm if text else None,
    )  # fmt: skip


def after_attention(
    file: HeadFile, t: HeadTensors, name: str, after: NetworkBuilder, mixed: str, width: int,
    rest: str = "rest",
) -> str:  # fmt: skip
    """Add the steps after attention, and return the name of the layer's result.

    Some layers end after the attention (Kangaroo).
    """

    def linear(x: str, part: str, rows: int, columns: int) -> str:
        weight = t(f"{name}{part}_proj.weight", rows, columns)
        return after.linear(x, weight, t.maybe(f"{name}{part}_proj.bias", len(weight)))

    mixed = linear(mixed, "self_attn.o", width, after.inputs["mixed"])
    mixes = BlockConvolution.of(file, t, f"{name}attention_conv", width)
    if mixes is not None:
        mixed = mixes.after(after, mixed, after.part(rest, width, mixes.added))
        rest = after.part(rest, 0, width)
    state = after.add("add", rest, mixed)
    if f"{name}mlp.gate_proj.weight" not in t:
        return state
    inner = len(t(f"{name}mlp.gate_proj.weight", -1, width))
    gain = t.gain(f"{name}post_attention_layernorm.weight", width)
    x, amounts = after.norm(state, gain, file.epsilon), ""
    mixes = BlockConvolution.of(file, t, f"{name}mlp_conv", width)
    if mixes is not None:
        x, amounts = mixes.before(after, x)
    gated = after.add("silu", linear(x, "mlp.gate", inner, width))
    product = after.add("multiply", gated, linear(x, "mlp.up", inner, width))
    made = linear(product, "mlp.down", width, inner)
    return after.add("add", state, mixes.after(after, made, amounts) if mixes else made)


def _of_text(width: int, *projections: Projection) -> Network:
    steps = NetworkBuilder(state=width)
    steps.add("join", *(steps.linear("state", *each) for each in projections))
    return steps.network()


def text_of_target(parts: HeadParts, layer: int) -> tuple[Network, NDArray[Any] | None]:
    """Build the network that makes a target layer's keys and values from the layer's input state.

    Returns:
        The network, and the gain of the keys' norm or None.
    """
    steps = NetworkBuilder(state=parts.config.hidden_size)
    keys, values, gain = keys_of_target(parts, layer, steps, "state")
    steps.add("join", keys, values)
    return steps.network(), gain


def keys_of_target(
    parts: HeadParts, layer: int, steps: NetworkBuilder, state: str
) -> tuple[str, str, NDArray[Any] | None]:
    """Add steps that make a target layer's keys and values from the layer's input state.

    Returns:
        The names of keys and values, and the gain of the keys' norm or None.
    """
    config, name = parts.config, f"layers.{layer}."
    rows, width, gain = config.kv_heads * config.head_dim, config.hidden_size, None
    turn = HalfSplit.of(config.rope, config.head_dim)
    if config.qk_norm:
        gain = parts.of_target(f"{name}k_norm", config.head_dim)[turn.order] * turn.factor
        turn = replace(turn, factor=np.ones_like(turn.factor))
    x = steps.norm(state, parts.of_target(f"{name}attn_norm", width), config.norm_eps)

    def projection(part: str) -> Projection:
        bias = parts.of_target(f"{name}{part}.bias", rows) if config.qkv_bias else None
        return parts.of_target(f"{name}{part}", rows, width), bias

    keys = steps.linear(x, *turn.rows(*projection("k")))
    return keys, steps.linear(x, *projection("v")), gain
