"""LongSpec's layer in PyTorch, and its weights before training."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode.backends.torch.model import rotate
from paradecode.models.config import ModelConfig
from paradecode.models.heads.longspec import WINDOW
from paradecode.models.weights import Weights
from paradecode_lab.training.heads.network import HeadNetwork, Rows, attend, rms

KEPT = ("attn_norm", "k", "k.bias", "k_norm", "v", "v.bias")
"""Names of the tensors of the target's last layer that make its keys and values."""
SINK, FARTHEST, SHORT = 4, 30000, 1200
"""Limits of the random shifts of a text, in tokens.

SINK: how many tokens at the beginning may stay in place. FARTHEST: the last position that a shift
may reach. SHORT: length of the longest text that is shifted.
"""
SPARE = 1000
"""Number of positions at the end of the target's context that no shift reaches."""


class LongSpecNetwork(HeadNetwork):
    """LongSpec's layer. As in the published code, it is trained on the text's own tokens.

    In training, the first tokens of a text keep their positions and the others are shifted by a
    random offset (anchor-offset indices), so that short texts teach far positions. Level i sees the
    target's keys up to i + 1 positions before its own, as in a draft. The published code draws a
    lag of 1 to 4.
    """

    hard = 1.0

    def states(self, rows: Rows, count: int) -> list[Tensor]:
        """Return the inputs of the LM head, [rows that draft, D], at each level."""
        said: list[list[Tensor]] = [[] for _ in range(count)]
        for (first, size, begin), begun in zip(rows.spans, rows.begun):
            tokens = torch.cat([begun[None], rows.tokens[first : first + size - 1]])
            places = self._places(size)
            root = begin - first + 1  # The first token after which a draft begins.
            x = self._own(F.embedding(tokens, self.target.embed), places, root)
            queries = self.heads_of(
                "cross.self_attn.q_proj", self._norm(x, "cross.input_layernorm")
            )
            queries = rotate(queries, *self.turn(places[root:]))
            keys, values = self._of_target(rows.features[first : first + size], places)
            for level in range(count):
                seen = attend(queries[level:], keys, values, begin - first, [])
                said[level].append(self.after("cross.", x[level:], seen))
        return [torch.cat(each) for each in said]

    def _own(self, embedded: Tensor, places: Tensor, begin: int) -> Tensor:
        """Return the states of the rows from ``begin`` on after the first layer.

        Its attention sees only a window of the text.
        """
        q, k, v = self.projected(0, self._norm(embedded, "layers.0.input_layernorm"), places)
        mixed = attend(q[begin:], k, v, begin, [], WINDOW)
        return self.after("layers.0.", embedded[begin:], mixed)

    def _of_target(self, states: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of the target's last layer, from the states that enter it."""
        last, epsilon = self.target.last, self.target.epsilon
        with torch.no_grad(), torch.autocast(states.device.type, enabled=False):
            x = rms(states, last["attn_norm"], epsilon)
            k, v = (F.linear(x, last[part], last.get(f"{part}.bias"))
                    .unflatten(-1, (-1, self.file.head_dim)) for part in "kv")  # fmt: skip
            if "k_norm" in last:
                k = rms(k, last["k_norm"], epsilon)
            return rotate(k, *self.turn(places)), v

    def _places(self, size: int) -> Tensor:
        """Return the positions of a text's tokens; training shifts short texts at random."""
        places = torch.arange(size)
        room = min(FARTHEST, self.target.context - SPARE) - size
        if self.progress < 1 and size <= SHORT and room > 0:
            places[int(self.random.integers(SINK + 1)) :] += int(self.random.integers(room + 1))
        return places


def longspec_weights(
    config: ModelConfig, weights: Weights, inner: int, random: np.random.Generator
) -> dict[str, NDArray[np.float32]]:
    """Return the initial weights of the layer, copied from the target's last layer.

    The first attention and the MLP add nothing at first.

    Args:
        inner: width of the MLP.
    """
    last, d = f"layers.{config.layers - 1}.", config.hidden_size
    own = {part: weights[f"{last}{part}"].float32() for part in ("q", "k", "v", "o", "gate", "up")}
    norms = {part: weights[f"{last}{part}_norm"].float32() for part in ("attn", "mlp")}
    made = {
        "layers.0.input_layernorm.weight": norms["attn"],
        "layers.0.self_attn.o_proj.weight": np.zeros_like(own["o"]),
        "cross.input_layernorm.weight": norms["attn"],
        "cross.self_attn.o_proj.weight": own["o"],
        "cross.post_attention_layernorm.weight": norms["mlp"],
        "cross.mlp.down_proj.weight": np.zeros((d, inner), np.float32),
    }
    for part in ("layers.0.self_attn.q", "layers.0.self_attn.k", "layers.0.self_attn.v",
                 "cross.self_attn.q"):  # fmt: skip
        bias = f"{last}{part[-1]}.bias"
        none = np.zeros(len(own[part[-1]]), np.float32)
        made[f"{part}_proj.weight"] = own[part[-1]]
        made[f"{part}_proj.bias"] = weights[bias].float32() if bias in weights else none
    for part in ("gate", "up"):
        rows = (0.02 * random.standard_normal((inner, d))).astype(np.float32)
        made[f"cross.mlp.{part}_proj.weight"] = own[part] if inner == len(own[part]) else rows
    return made
