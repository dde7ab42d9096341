"""LongSpec's layer: it sees a window of tokens, and keys and values of the target's last layer."""

from __future__ import annotations

from dataclasses import replace

from paradecode.core.errors import InvalidModel
from paradecode.core.head import Block, Head
from paradecode.models.heads.layers import HalfSplit, after_attention, layers, text_of_target
from paradecode.models.heads.networks import NetworkBuilder
from paradecode.models.heads.parts import HeadParts

WINDOW = 512
"""Number of earlier positions that a row's self-attention sees, as in the published code."""


def longspec(parts: HeadParts) -> Head:
    """Build a head of LongSpec (arXiv 2502.17421), with the names of sail-sg/LongSpec.

    The layer has two attentions, which are two blocks here. The second one has no keys and values
    of its own. For committed tokens it uses those of the target's last layer. The target's
    projections compute them again from the state that enters that layer, so nothing is read from
    the target's cache. All of them are kept, in training as well, even if the target's own layer
    has a sliding window.
    """
    t, file, config = parts.t, parts.file, parts.config
    width = config.hidden_size
    if config.layers < 2:
        fix = "the head reads what enters the target's last layer: use a target of several"
        raise InvalidModel("layers", config.layers, fix)
    for name, own, theirs in (("num_key_value_heads", file.kv_heads, config.kv_heads),
                              ("head_dim", file.head_dim, config.head_dim)):  # fmt: skip
        if own != theirs:
            raise InvalidModel(name, own, f"the target's keys, which it reads, have {theirs}")
    first = NetworkBuilder(token=0)
    embedded = parts.embedded(first)
    # The published code rotates both attentions like the target's, whatever the file says.
    made = layers(replace(file, rope=config.rope), t, first, embedded, embedded, width)
    if len(made) != 1 or "layers.0.input_layernorm.weight" not in t:
        fix = "a layer with self_attn and input_layernorm is known: get a complete file"
        raise InvalidModel("self_attn", len(made), fix)
    enter = NetworkBuilder(features=width)
    enter.same("features", width)
    out, ids = parts.out(width, normed=False)
    blocks = replace(made[0], window=WINDOW), _crossing(parts)
    taps = (config.layers - 2,)
    return Head("longspec", taps, width, enter.network(), blocks, (out,), to_target=ids)


def _crossing(parts: HeadParts) -> Block:
    """Build the attention to the target's keys and values, and the MLP."""
    t, file, config, width = parts.t, parts.file, parts.config, parts.config.hidden_size
    steps = NetworkBuilder(state=width)
    turn, wide = HalfSplit.of(config.rope, config.head_dim), file.heads * config.head_dim
    query = turn.rows(*t.projection("cross.self_attn.q_proj", wide, width))
    x = steps.norm("state", t("cross.input_layernorm.weight", width), file.epsilon)
    steps.add("join", steps.linear(x, *query), "state")
    after = NetworkBuilder(mixed=wide, rest=width)
    after_attention(file, t, "cross.", after, "mixed", width)
    text, gain = text_of_target(parts, config.layers - 1)
    return Block(
        steps.network(), after.network(), file.heads, config.kv_heads, config.head_dim,
        turn.frequencies, config.norm_eps, None, None, text, gain, crosses=True,
    )  # fmt: skip
