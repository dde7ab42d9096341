"""Clover's heads in PyTorch, and their weights before training."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode_lab.training.heads.network import HeadNetwork, Rows, first_rows, sizes_of


class CloverNetwork(HeadNetwork):
    """A head of Clover or Clover-2, trained with the two losses of Clover-2 (arXiv 2408.00264)."""

    match = 10.0

    def states(self, rows: Rows, count: int) -> list[Tensor]:
        """Return the states that draft each level, as the ``states`` of every head does.

        The recurrent cell gets the tokens of the text, not those of a draft.
        """
        state, said = self._text(rows), []
        state = self._norm(state, "clover_norm")
        drafts = rows.drafting(0)
        for level in range(count):
            wanted = rows.drafting(level)
            state = state[first_rows(sizes_of(drafts), sizes_of(wanted))]
            tokens = rows.tokens[torch.cat(wanted) + level]
            state, out = self._step(level, state, F.embedding(tokens, self.target.embed))
            said.append(self._norm(out, "clover_head_norm"))
            drafts = wanted
        return said

    def _text(self, rows: Rows) -> Tensor:
        """Return the states after all layers, for the rows of the texts that draft."""
        state, texts, asked = rows.features, rows.whole, rows.drafting(0)
        places, begins = rows.within(texts), [begin - first for first, _, begin in rows.spans]
        for number in range(self.layers):
            last = number == self.layers - 1
            state = self._layer(
                number, state, rows.tokens, places, sizes_of(texts), asked if last else None,
                begins if last else [0] * len(begins), [],
            )  # fmt: skip
        return state

    def _first(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        if self.file.kind == "clover-2":
            embedded = F.embedding(token, self.target.embed)
            state = self._merged("clover_head_mlp_rnn", state, embedded)
        return self._norm(state, "layers.0.input_layernorm"), state

    def _step(self, level: int, state: Tensor, embedded: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cell's next state, and the input of the norm before the LM head."""
        if self.file.kind == "clover":
            x = state = self._merged("clover_head_mlp_rnn", state, embedded)
            number, depth = min(level, self.heads - 1), 0
            while f"clover_head_mlp.{number}.{depth}.linear.weight" in self.parameters:
                x = x + F.silu(self._linear(f"clover_head_mlp.{number}.{depth}.linear", x))
                depth += 1
            return state, x
        if level == 0:
            return state, self._linear("clover_head_mlp", state)
        state = self._merged("clover_head_mlp_rnn2", state, embedded)
        return state, self._linear("clover_head_mlp2", torch.cat([state, embedded], -1))

    def _merged(self, cell: str, state: Tensor, embedded: Tensor) -> Tensor:
        """Let a cell add the token's embedding to the state, and return the new state.

        For each attention head, the cell adds the value times the cosine of query and key.
        """
        normed = self._norm(state, f"{cell}.input_layernorm")
        q, k, v = (
            self._linear(f"{cell}.{part}", x).unflatten(-1, (self.file.heads, -1))
            for part, x in zip("qkv", (normed, embedded, embedded))
        )
        gates = F.cosine_similarity(q, k, dim=-1, eps=self.file.epsilon)
        return state + (gates[..., None] * v).flatten(-2)

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return F.linear(
            x, self.parameters[f"{name}.weight"], self.parameters[f"{name}.bias"]
        ).float()


def clover_weights(
    second: bool, d: int, levels: int, norm: NDArray[np.float32]
) -> dict[str, NDArray[np.float32]]:
    """Return the initial weights of all tensors but those of the layers.

    A head with them predicts the same tokens as the target. The cells' queries and keys are at
    first copies of their inputs, and their values are zeros.

    Args:
        second: whether the head is Clover-2.
        d: width of the states.
        levels: number of levels that have a residual block of their own (Clover only).
        norm: float32 [d], gain of the target's last norm.
    """
    one, none = np.eye(d, dtype=np.float32), np.zeros(d, np.float32)
    made = {"clover_norm.weight": none + 1, "clover_head_norm.weight": norm}
    for cell in ("clover_head_mlp_rnn", "clover_head_mlp_rnn2")[: 1 + second]:
        made[f"{cell}.input_layernorm.weight"] = none + 1
        for part in "qkv":
            made[f"{cell}.{part}.weight"] = one * (part != "v")
            made[f"{cell}.{part}.bias"] = none
    for level in range(0 if second else levels):
        name = f"clover_head_mlp.{level}.0.linear"
        made |= {f"{name}.weight": np.zeros((d, d), np.float32), f"{name}.bias": none}
    if second:
        wide = np.eye(d, 2 * d, dtype=np.float32)
        for name, weight in (("clover_head_mlp", one), ("clover_head_mlp2", wide)):
            made |= {f"{name}.weight": weight, f"{name}.bias": none}
    return made
