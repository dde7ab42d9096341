"""Falcon's head: LSTM layers and an attention layer, whose rows guess a block of tokens."""

from __future__ import annotations

import numpy as np

from paradecode.core.errors import InvalidModel
from paradecode.core.head import Head, Lstm
from paradecode.models.heads.layers import layers
from paradecode.models.heads.networks import NetworkBuilder
from paradecode.models.heads.parts import HeadParts

GATES = ("input", "forget", "candidate", "output")


def falcon(parts: HeadParts) -> Head:
    """Build a head of Falcon (arXiv 2412.12639, Bestpay-inc/Falcon), with the names of its code.

    As in the paper, the LSTM runs along the text. (The published code gives ``nn.LSTM`` a batch in
    place of a sequence, and so carries nothing from row to row.) The last ``k_mask`` rows see one
    another at any position; in the published code blocks begin at the first row of each call.
    """
    t, file, width = parts.t, parts.file, parts.config.hidden_size
    first = NetworkBuilder(state=width, token=0)
    blocks = layers(file, t, first, "state", "state", width)
    if len(blocks) != 1:
        raise InvalidModel("layers", len(blocks), "heads of Falcon with one layer are known")
    out, ids = parts.out(width, normed=False)
    return Head("falcon", (-1,), width, parts.enter_last(), blocks, (out,), to_target=ids,
                lstm=(_lstm(parts, 0), _lstm(parts, 1)), together=file.block_size)  # fmt: skip


def _lstm(parts: HeadParts, number: int) -> Lstm:
    """Build a layer of ``nn.LSTM``, whose matrices hold the gates' rows one after another."""
    t, width = parts.t, parts.config.hidden_size
    entering = 2 * width if number == 0 else width
    before, x = NetworkBuilder(state=width), "state"
    if number == 0:
        before = NetworkBuilder(state=width, token=0)
        x = before.add("join", parts.embedded(before), "state")
    bias = sum(t(f"lstm.bias_{part}_l{number}", 4 * width) for part in ("ih", "hh"))
    before.linear(x, t(f"lstm.weight_ih_l{number}", 4 * width, entering), np.asarray(bias))
    step = NetworkBuilder(**dict.fromkeys(GATES, width), hidden=width, cell=width)
    weights = np.split(t(f"lstm.weight_hh_l{number}", 4 * width, width), 4)
    opened = {
        gate: step.add("add", gate, step.linear("hidden", weight))
        for gate, weight in zip(GATES, weights)
    }
    kept = step.add("multiply", step.add("sigmoid", opened["forget"]), "cell")
    new = step.tanh(opened["candidate"], width)
    added = step.add("multiply", step.add("sigmoid", opened["input"]), new)
    cell = step.add("add", kept, added)
    said = step.add("sigmoid", opened["output"])
    hidden = step.add("multiply", said, step.tanh(cell, width))
    step.add("join", hidden, cell)
    return Lstm(before.network(), step.network())
