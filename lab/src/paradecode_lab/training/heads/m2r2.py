"""M2R2's stream in PyTorch, and the initial weights of what it adds to the target's layers."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paradecode.backends.torch.model import Transformer, attention
from paradecode.models.config import ModelConfig
from paradecode_lab.training.heads.network import HeadNetwork, Rows

PARTS = ("gate", "up", "down")


class StreamNetwork(HeadNetwork):
    """M2R2's stream. It is trained to give, after its own last layer, the target's last state.

    Only rows that draft have a stream. They see the keys and values of all rows in the target's own
    layers.
    """

    match = 1.0

    def states(self, rows: Rows, count: int) -> list[Tensor]:
        """Return the inputs of the LM head, [rows that draft, D], at each level.

        The guess at level i is that of the row i + 1 positions later.
        """
        model, own = self.target.model, self._own_layers()
        assert model is not None
        sizes = [size for _, size, _ in rows.spans]
        roots = [begin - first + 1 for first, _, begin in rows.spans]
        known = model.rows(torch.cat([torch.arange(size) for size in sizes]))
        wanted = rows.drafting(0)
        lengths, drafting = [len(each) for each in wanted], torch.cat(wanted) + 1
        entering, kept = rows.features.chunk(len(self.file.taps), -1), list[Tensor]()

        def keep(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            kept[:] = [k, v]
            return q

        def look(_: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            asked = q.split(lengths)
            texts = zip(asked, *(each.split(sizes) for each in kept), roots)
            return torch.cat([
                attention(q, k, v, torch.arange(root, len(k))[:, None] >= torch.arange(len(k)))
                for q, k, v, root in texts
            ])  # fmt: skip

        x = entering[0][drafting]
        for tap, slow in zip(self.file.taps, entering):
            with torch.no_grad():
                model.layer(tap + 1, slow, known, keep, feeds=False)
            x = own.layer(tap + 1, x, known.select(drafting), look)
        every = self.target.final(x).split(lengths)
        return [torch.cat([each[level:] for each in every]) for level in range(count)]

    def _own_layers(self) -> Transformer:
        """Return the target's layers with the trained additions."""
        model, p = self.target.model, self.parameters
        assert model is not None
        own, made = copy(model), dict[str, Tensor]()
        for number, tap in enumerate(self.file.taps):
            start, name = f"stream.{number}.", f"layers.{tap + 1}."
            added = p[f"{start}query.up.weight"] @ p[f"{start}query.down.weight"]
            made[f"{name}q"] = model.w[f"{name}q"] + added
            for part in PARTS:
                both = [model.w[f"{name}{part}"], p[f"{start}mlp.{part}_proj.weight"]]
                made[f"{name}{part}"] = torch.cat(both, int(part == "down"))
                bias = f"{name}{part}.bias"
                if bias in model.w and part != "down":
                    none = torch.zeros(len(both[1]))
                    made[bias] = torch.cat([model.w[bias], none])
        own.w = model.w | made
        return own


def stream_weights(
    config: ModelConfig, layers: int, rank: int, normal: Callable[..., NDArray[np.float32]]
) -> dict[str, NDArray[np.float32]]:
    """Return the initial weights of the additions to each layer; they have no effect at first.

    Args:
        layers: number of layers of the stream.
        rank: rank of the addition to the queries' matrix, and number of units added to the MLP.
        normal: draws an array of small random numbers with these sizes.
    """
    d, made = config.hidden_size, dict[str, NDArray[np.float32]]()
    for number in range(layers):
        start = f"stream.{number}."
        made[f"{start}query.down.weight"] = normal(rank, d)
        made[f"{start}query.up.weight"] = np.zeros((config.heads * config.head_dim, rank), "f4")
        made[f"{start}mlp.gate_proj.weight"] = normal(rank, d)
        made[f"{start}mlp.up_proj.weight"] = normal(rank, d)
        made[f"{start}mlp.down_proj.weight"] = np.zeros((d, rank), "f4")
    return made
