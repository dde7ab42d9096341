"""Chimera's head: trigrams of the new tokens, a layer that sees the target's states, LM heads."""

from __future__ import annotations

from paradecode.core.errors import InvalidModel
from paradecode.core.head import Head, Network
from paradecode.models.heads.layers import layers
from paradecode.models.heads.networks import NetworkBuilder
from paradecode.models.heads.parts import HeadParts


def chimera(parts: HeadParts) -> Head:
    """Build a head of Chimera (arXiv 2402.15758), with the tensors of kafkayu/Chimera.

    A new token's row is the trigram that ends with it. As in the paper, it sees the target's states
    of the committed tokens and the rows of its path. In the published code, masks differ from level
    to level, and decoding calls modules that do not exist.
    """
    t, file, config = parts.t, parts.file, parts.config
    width = config.hidden_size
    first = NetworkBuilder(token=0, token1=0, token2=0)
    newest = parts.embedded(first)
    older = [first.add("lookup", name, same=newest) for name in ("token2", "token1")]
    three = first.add("join", *older, newest)
    name = "trimlp.0.linear"
    inner = first.linear(three, t(f"{name}.weight", 3 * width, 3 * width),
                         t(f"{name}.bias", 3 * width))  # fmt: skip
    three = first.add("add", three, first.add("silu", inner))
    into = first.linear(three, t("trimlp.1.weight", width, 3 * width))
    blocks = layers(file, t, first, into, into, width, text=True)
    if len(blocks) != 1:
        raise InvalidModel("layers", len(blocks), "heads of Chimera with one layer are known")
    anchor = parts.enter_last()
    enter = NetworkBuilder(features=width)
    enter.ops, enter.tensors = list(anchor.steps), dict(anchor.tensors)
    gain = t("layers.0.input_layernorm.weight", width)
    enter.norm(anchor.steps[-1].out, gain, file.epsilon)
    outs: list[Network] = []
    ids = None
    while not outs or f"chimera_head.{len(outs)}.0.weight" in t:
        steps = NetworkBuilder(state=2 * width)
        rows, ids = parts.kept(f"chimera_head.{len(outs)}.0.weight", 2 * width)
        steps.linear("state", rows)
        outs.append(steps.network())
    sizes = {out.widths[out.steps[-1].out] for out in outs}
    if len(sizes) > 1:
        raise InvalidModel("chimera_head", sorted(sizes), "its heads must guess the same tokens")
    return Head("chimera", (-1,), width, enter.network(), blocks, tuple(outs), to_target=ids,
                anchor=anchor, grams=3)  # fmt: skip
