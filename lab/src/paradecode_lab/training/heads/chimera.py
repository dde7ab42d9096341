"""Chimera's head in PyTorch, and its weights before training."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode.models.heads import HeadFile
from paradecode_lab.training.heads.network import HeadNetwork, Rows, Target, attend, first_rows

GRAMS = 3


class ChimeraNetwork(HeadNetwork):
    """Chimera's head. As in the published code, it is trained on the text's own tokens."""

    hard = 1.0

    def __init__(self, file: HeadFile, target: Target, scale: Tensor) -> None:
        super().__init__(file, target, scale)
        self.heads = sum(name.startswith("chimera_head.") for name in self.parameters)

    def states(self, rows: Rows, count: int) -> list[Tensor]:
        """Return the inputs of each level's head, [rows that draft, 2 D].

        The target's last state and the state of Chimera's layer stand side by side.
        """
        final = self.target.final(rows.features)
        places = torch.cat([torch.arange(n) for _, n, _ in rows.spans])
        _, keys, values = self.projected(0, self._normed(final), places)
        drafts = rows.drafting(0)
        begins = torch.cat([torch.full_like(each, first)
                            for each, (first, _, _) in zip(drafts, rows.spans)])  # fmt: skip
        own: list[tuple[Tensor, Tensor]] = []
        said: list[Tensor] = []
        for level in range(count):
            wanted = rows.drafting(level)
            kept = first_rows([len(d) for d in drafts], [len(w) for w in wanted])
            drafts, begins, own = wanted, begins[kept], [(k[kept], v[kept]) for k, v in own]
            anchors = torch.cat(wanted)
            ends = anchors[:, None] + level + torch.arange(1 - GRAMS, 1)
            into = self._gram(rows.tokens[ends.maximum(begins[:, None])])
            q, k, v = self.projected(0, self._normed(into), anchors - begins + 1 + level)
            own.append((k, v))
            mixed, at = [], 0
            for each, (first, size, begin) in zip(wanted, rows.spans):
                part, text = slice(at, at + len(each)), slice(first, first + size)
                at += len(each)
                mine = [(key[part], value[part]) for key, value in own]
                mixed.append(attend(q[part], keys[text], values[text], begin - first, mine))
            state = self.after("layers.0.", into, torch.cat(mixed))
            said.append(torch.cat([final[anchors], state], -1))
        return said

    def say(self, state: Tensor, level: int) -> Tensor:
        number = min(level, self.heads - 1)
        return F.linear(state, self.parameters[f"chimera_head.{number}.0.weight"]).float()

    def _normed(self, x: Tensor) -> Tensor:
        return self._norm(x, "layers.0.input_layernorm")

    def _gram(self, tokens: Tensor) -> Tensor:
        """Return the states [n, D] of trigrams [n, 3] of token ids."""
        p = self.parameters
        x = F.embedding(tokens, self.target.embed).flatten(1)
        name = "trimlp.0.linear"
        x = x + F.silu(F.linear(x, p[f"{name}.weight"], p[f"{name}.bias"]).float())
        return F.linear(x, p["trimlp.1.weight"]).float()


def chimera_weights(levels: int, rows: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """Return the initial weights of the trigram MLP and of the heads.

    The state of a trigram is at first the embedding of its newest token. Each head applies the
    target's LM head to both halves of its input.

    Args:
        levels: number of heads.
        rows: float32 [v, D], rows of the target's LM head.
    """
    d = rows.shape[1]
    made = {
        "trimlp.0.linear.weight": np.zeros((3 * d, 3 * d), np.float32),
        "trimlp.0.linear.bias": np.zeros(3 * d, np.float32),
        "trimlp.1.weight": np.eye(d, 3 * d, k=2 * d, dtype=np.float32),
    }
    both = np.concatenate([rows, rows], axis=1)
    return made | {f"chimera_head.{level}.0.weight": both for level in range(levels)}
