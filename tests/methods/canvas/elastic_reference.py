"""A slow reference of Elastic-Cache that follows the paper layer by layer, with its own caches."""

from dataclasses import dataclass, field

import numpy as np

from paradecode.models.config import ModelConfig
from paradecode.models.weights import Weights

Array = np.ndarray


@dataclass
class Elastic:
    """Decodes one request: each ``step`` runs a forward, and its caller decides the tokens.

    Attributes:
        refreshed: of each forward, the first layer that was computed for all rows (0: the first
            forward), or None.
        likeness: of each forward, the cosines that were looked at.
        tracked: of each forward, the token that each layer tracks from there on.
    """

    config: ModelConfig
    weights: Weights
    threshold: float
    inputs: dict[int, Array] = field(default_factory=dict)
    queries: dict[int, Array] = field(default_factory=dict)
    keys: dict[int, Array] = field(default_factory=dict)
    values: dict[int, Array] = field(default_factory=dict)
    refreshed: list[int | None] = field(default_factory=list)
    likeness: list[list[float]] = field(default_factory=list)
    tracked: list[list[int]] = field(default_factory=list)

    def step(self, tokens: Array, masked: Array, fresh: Array, window: Array) -> dict[int, Array]:
        """Run a forward, and return position -> logits of the rows that were computed.

        Args:
            tokens: int [N], mask tokens where ``masked``.
            fresh: positions that the last step decided.
            window: the next masks.
        """
        c = self.config
        everywhere = np.arange(len(tokens))
        first = not self.tracked
        rows = everywhere
        if not first:
            rows = np.unique([*window, *fresh, *self.tracked[-1]]).astype(int)
        state = self.w("embed")[tokens[rows]]
        start: int | None = 0 if first else None
        received, cosines = [], []
        for layer in range(c.layers):
            if first:
                self.inputs[layer] = state.copy()
            else:
                self.inputs[layer][rows] = state
            token = None if first else self.tracked[-1][layer]
            before = None if first else self.attention(layer, token)
            self.project(layer, rows, state)
            weights = {row: self.attention(layer, row) for row in rows}
            mixed = np.stack([self.mixed(layer, weights[row]) for row in rows])
            state = self.fed(layer, state + mixed @ self.w(f"layers.{layer}.o").T)
            received.append(sum(weights[row].sum(0) for row in window))
            if start is None:
                after = weights[token]
                cosine = [
                    (a @ b) / np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(before, after)
                ]
                cosines.append(float(np.mean(cosine)))
                if cosines[-1] < self.threshold and layer + 1 < c.layers:
                    start = layer + 1
                    self.inputs[start][rows] = state
                    rows, state = everywhere, self.inputs[start].copy()
        decided = np.flatnonzero(~masked)
        self.tracked.append([int(decided[share[decided].argmax()]) for share in received])
        self.refreshed.append(start)
        self.likeness.append(cosines)
        head = self.w("embed" if c.tied_head else "head")
        return dict(zip(rows.tolist(), self.norm(state, "norm") @ head.T))

    def w(self, name: str) -> Array:
        return self.weights[name].float32().astype(np.float64)

    def norm(self, x: Array, name: str) -> Array:
        scale = np.sqrt((x * x).mean(-1, keepdims=True) + self.config.norm_eps)
        return x / scale * self.w(name)

    def project(self, layer: int, rows: Array, state: Array) -> None:
        """Compute queries, keys and values of some rows, which replace the cached ones."""
        c, name = self.config, f"layers.{layer}."
        h = self.norm(state, name + "attn_norm")
        for store, part in ((self.queries, "q"), (self.keys, "k"), (self.values, "v")):
            made = (h @ self.w(name + part).T).reshape(len(rows), -1, c.head_dim)
            made = made if part == "v" else self.turned(made, rows)
            if layer not in store:
                store[layer] = made
            store[layer][rows] = made

    def turned(self, x: Array, rows: Array) -> Array:
        angle = rows[:, None, None] * self.config.rope.inverse_frequencies()
        low, high = np.split(x, 2, axis=-1)
        cos, sin = np.cos(angle), np.sin(angle)
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)

    def attention(self, layer: int, row: int) -> Array:
        """Return the attention weights [heads, N] of a row over the cached keys."""
        c = self.config
        shares = []
        for head in range(c.heads):
            keys = self.keys[layer][:, head * c.kv_heads // c.heads]
            scores = keys @ self.queries[layer][row, head] / np.sqrt(c.head_dim)
            scores = np.exp(scores - scores.max())
            shares.append(scores / scores.sum())
        return np.stack(shares)

    def mixed(self, layer: int, shares: Array) -> Array:
        c = self.config
        return np.concatenate([
            share @ self.values[layer][:, head * c.kv_heads // c.heads]
            for head, share in enumerate(shares)
        ])  # fmt: skip

    def fed(self, layer: int, x: Array) -> Array:
        name = f"layers.{layer}."
        h = self.norm(x, name + "mlp_norm")
        gate = h @ self.w(name + "gate").T
        inner = gate / (1 + np.exp(-gate)) * (h @ self.w(name + "up").T)
        return x + inner @ self.w(name + "down").T
