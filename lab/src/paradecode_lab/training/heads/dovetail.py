"""Dovetail's head in PyTorch, and its gated fusion before training."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode_lab.training.heads.network import HeadNetwork


class DovetailNetwork(HeadNetwork):
    """Dovetail's head, with the weights of its two losses: 1 for the distance of states, 0.1 for
    the distribution."""

    match = 10.0

    def _first(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        p = self.parameters
        embedded = self._norm(F.embedding(token, self.target.embed), "input_layernorm")
        state, said = state @ p["W_1"], F.silu(embedded @ p["W_2"])
        gate = torch.sigmoid(torch.cat([state, said], -1) @ p["W_z"])
        into = torch.lerp(said, state, gate).float()
        return into, into


def dovetail_weights(d: int) -> dict[str, NDArray[np.float32]]:
    """First weights of the fusion: it gives the state, half open to a token without effect."""
    zeros = np.zeros((2 * d, d), np.float32)
    return {
        "input_layernorm.weight": np.ones(d, np.float32), "W_z": zeros, "W_2": zeros[:d],
        "W_1": 2 * np.eye(d, dtype=np.float32),
    }  # fmt: skip
