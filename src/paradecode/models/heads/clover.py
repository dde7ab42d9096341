"""Clover's heads: layers over committed tokens, and a recurrent cell after each draft token."""

from __future__ import annotations

import numpy as np

from paradecode.core.errors import InvalidModel
from paradecode.core.head import Cell, Head, Network
from paradecode.models.heads.layers import layers
from paradecode.models.heads.networks import NetworkBuilder
from paradecode.models.heads.parts import HeadParts


def clover(parts: HeadParts) -> Head:
    """Build a head of Clover (arXiv 2405.00263) or Clover-2 (2408.00264, XiaoBin1992/clover).

    Clover runs its layer on the target's states, and merges each token into the result. Clover-2
    merges the first token before its layers, with a separate cell. No code of Clover was published,
    so the order of its operations, and its residual blocks for each level, are those of Clover-2.
    """
    t, file, width = parts.t, parts.file, parts.config.hidden_size
    t.maybe("embed_tokens.weight", -1, width)
    first, into = NetworkBuilder(state=width, token=0), "state"
    if file.kind == "clover-2":
        into = _merged(parts, first, "clover_head_mlp_rnn", into, parts.embedded(first))
    blocks = layers(file, t, first, into, into, width)
    embed = NetworkBuilder(token=0)
    parts.embedded(embed)
    out, ids = parts.out(width, normed=False)
    steps = _second(parts) if file.kind == "clover-2" else _first(parts)
    return Head(
        file.kind, (-1,), width, parts.enter_last(normed=False), blocks, (out,), to_target=ids,
        cell=Cell(embed.network(), steps),
    )  # fmt: skip


def _first(parts: HeadParts) -> tuple[Network, ...]:
    """Build Clover's cell, followed by the residual blocks of each level."""
    made: list[Network] = []
    while not made or f"clover_head_mlp.{len(made)}.0.linear.weight" in parts.t:
        width, level = parts.config.hidden_size, f"clover_head_mlp.{len(made)}"
        steps = NetworkBuilder(state=width, embedded=width)
        state = "state" if made else _normed(parts, steps, "clover_norm", "state")
        x = state = _merged(parts, steps, "clover_head_mlp_rnn", state, "embedded")
        depth = 0
        while depth == 0 or f"{level}.{depth}.linear.weight" in parts.t:
            inner = _linear(parts, steps, f"{level}.{depth}.linear", x, width)
            x, depth = steps.add("add", x, steps.add("silu", inner)), depth + 1
        steps.add("join", state, _normed(parts, steps, "clover_head_norm", x))
        made.append(steps.network())
    return tuple(made)


def _second(parts: HeadParts) -> tuple[Network, ...]:
    """Build Clover-2's first level, which gets its token from the layers, and one network for all
    other levels."""
    width = parts.config.hidden_size
    made: list[Network] = []
    for name in ("clover_head_mlp", "clover_head_mlp2"):
        steps = NetworkBuilder(state=width, embedded=width)
        if made:
            state = _merged(parts, steps, "clover_head_mlp_rnn2", "state", "embedded")
            x, wide = steps.add("join", state, "embedded"), 2 * width
        else:
            x, wide = _normed(parts, steps, "clover_norm", "state"), width
            state = x
        x = _linear(parts, steps, name, x, wide)
        steps.add("join", state, _normed(parts, steps, "clover_head_norm", x))
        made.append(steps.network())
    return tuple(made)


def _merged(parts: HeadParts, steps: NetworkBuilder, cell: str, state: str, embedded: str) -> str:
    """Add, for each attention head, the token's value times the cosine of query and key.

    The sum starts with the state. This is attention to one token, where a softmax would always be
    1.
    """
    t, file, width = parts.t, parts.file, parts.config.hidden_size
    size, odd = divmod(width, file.heads)
    if odd:
        raise InvalidModel("num_attention_heads", file.heads, f"it must divide {width}")
    normed = _normed(parts, steps, f"{cell}.input_layernorm", state)
    weights = [t(f"{cell}.{part}.weight", width, width) for part in "qkv"]
    biases = [t(f"{cell}.{part}.bias", width) for part in "qkv"]
    made = []
    for rows in np.split(np.arange(width), file.heads):
        q, k, v = (
            steps.linear(x, weight[rows], bias[rows])
            for x, weight, bias in zip((normed, embedded, embedded), weights, biases)
        )
        units = [  # Of length sqrt(size).
            steps.add("divide", x, steps.add("rms", x, number=file.epsilon**2 / size))
            for x in (q, k)
        ]
        cosine = steps.mean(steps.add("multiply", *units), size)
        made.append(steps.add("multiply", v, cosine))
    return steps.add("add", state, steps.add("join", *made))


def _linear(parts: HeadParts, steps: NetworkBuilder, name: str, x: str, wide: int) -> str:
    width = parts.config.hidden_size
    return steps.linear(x, parts.t(f"{name}.weight", width, wide), parts.t(f"{name}.bias", width))


def _normed(parts: HeadParts, steps: NetworkBuilder, name: str, x: str) -> str:
    gain = parts.t(f"{name}.weight", parts.config.hidden_size)
    return steps.norm(x, gain, parts.file.epsilon)
