"""Dovetail's head in PyTorch, and its gated fusion before training."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode_lab.training.heads.network import HeadNetwork


class DovetailNetwork(HeadNetwork):
    """Dovetail's head. It has two losses.

    The distance of states has weight 1, and the distribution has weight 0.1; here both are
    multiplied by 10.
    """

    match = 10.0

    def _first(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        p = self.parameters
        embedded = self._norm(F.embedding(token, self.target.embed), "input_layernorm")
        state, said = state @ p["W_1"], F.silu(embedded @ p["W_2"])
        gate = torch.sigmoid(torch.cat([state, said], -1) @ p["W_z"])
        into = torch.lerp(said, state, gate).float()
        return into, into


def dovetail_weights(d: int) -> dict[str, NDArray[np.float32]]:
    """Return the initial weights of the fusion, which then passes the state on unchanged.

    The gate is half open, ``W_1`` doubles the state, and the token has no effect.
    """
    zeros = np.zeros((2 * d, d), np.float32)
    return {
        "input_layernorm.weight": np.ones(d, np.float32), "W_z": zeros, "W_2": zeros[:d],
        "W_1": 2 * np.eye(d, dtype=np.float32),
    }  # fmt: skip
