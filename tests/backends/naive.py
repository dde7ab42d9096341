"""A NumPy float64 forward of one sequence without any cache, which every span must equal."""

from collections.abc import Sequence

import numpy as np

from paradecode.core.layers import Half, Layer
from paradecode.models.config import ModelConfig, Rope, uniform
from paradecode.models.weights import Tensor, Weights

TINY = {
    "vocab_size": 61, "hidden_size": 32, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 8,
    "intermediate_size": 48, "context_length": 256,
}  # fmt: skip


def tiny_config(**changes: object) -> ModelConfig:
    return uniform("tiny", "llama", **(TINY | {"rope": Rope(dim=8)} | changes))


def random_weights(config: ModelConfig, seed: int = 0) -> dict[str, Tensor]:
    """Return weights so large that attention is far from uniform, and a wrong mask shows."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in config.tensors().items():
        if len(shape) == 2:
            values = rng.normal(size=shape) * (1.0 if name == "embed" else 2.0 / shape[1] ** 0.5)
        elif name.endswith("norm"):
            values = rng.uniform(0.5, 1.5, size=shape)
        else:
            values = rng.normal(size=shape) * 0.5
        weights[name] = Tensor(values.astype(np.float32), shape)
    return weights


class Naive:
    """A whole forward over all tokens of a text, without a cache.

    Attributes:
        shares: float64 [N, heads, N], the attention weights of each layer of the last forward.
    """

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.config, self.shares = config, dict[int, np.ndarray]()
        self.w = {name: tensor.float32().astype(np.float64) for name, tensor in weights.items()}

    def logits(
        self,
        tokens: Sequence[int],
        *,
        positions: Sequence[int] | None = None,
        seen: np.ndarray | None = None,
        embeddings: np.ndarray | None = None,
        layers: Sequence[Layer] | None = None,
    ) -> np.ndarray:
        """Return the logits, float64 [N, V]; causal unless ``seen`` (bool [N, N]) is given."""
        x = self.hidden(tokens, positions, seen, embeddings, layers)[-1]
        head = self.w["embed" if self.config.tied_head else "head"]
        return self._norm(x, "norm") @ head.T

    def hidden(
        self,
        tokens: Sequence[int],
        positions: Sequence[int] | None = None,
        seen: np.ndarray | None = None,
        embeddings: np.ndarray | None = None,
        layers: Sequence[Layer] | None = None,
    ) -> list[np.ndarray]:
        """Return the input of the first layer, then the output of each of ``layers``."""
        c = self.config
        states = [self.w["embed"][list(tokens)] if embeddings is None else embeddings]
        count = len(states[0])
        at = np.arange(count) if positions is None else np.asarray(positions)
        seen = np.tri(count, dtype=bool) if seen is None else seen
        if c.sliding_window:
            seen = seen & (at[None, :] > at[:, None] - c.sliding_window)
        for index in range(c.layers) if layers is None else layers:
            layer, part = index if isinstance(index, Half) else (index, "both")
            x = states[-1].astype(np.float64)
            if part != "mlp":
                x = self._attention(layer, x, at, seen)
            states.append(x if part == "attention" else self._mlp(f"layers.{layer}.", x))
        return states

    def _attention(self, layer: int, x: np.ndarray, at: np.ndarray, seen: np.ndarray) -> np.ndarray:
        c, name = self.config, f"layers.{layer}."
        h = self._norm(x, name + "attn_norm")
        q = self._linear(h, name + "q").reshape(-1, c.heads, c.head_dim)
        k = self._linear(h, name + "k").reshape(-1, c.kv_heads, c.head_dim)
        v = self._linear(h, name + "v").reshape(-1, c.kv_heads, c.head_dim)
        if c.qk_norm:
            q, k = self._norm(q, name + "q_norm"), self._norm(k, name + "k_norm")
        q, k = self._rotate(q, at), self._rotate(k, at)
        mixed = np.empty_like(q)
        shares = self.shares[layer] = np.empty((len(x), c.heads, len(x)))
        for head in range(c.heads):
            group = head // (c.heads // c.kv_heads)
            scores = q[:, head] @ k[:, group].T / np.sqrt(c.head_dim)
            scores = np.where(seen, scores, -np.inf)
            p = np.exp(scores - scores.max(axis=1, keepdims=True))
            shares[:, head] = p / p.sum(axis=1, keepdims=True)
            mixed[:, head] = shares[:, head] @ v[:, group]
        return x + self._linear(mixed.reshape(len(x), -1), name + "o")

    def _mlp(self, name: str, x: np.ndarray) -> np.ndarray:
        h = self._norm(x, name + "mlp_norm")
        gate = self._linear(h, name + "gate")
        gated = gate / (1 + np.exp(-gate)) * self._linear(h, name + "up")
        return x + self._linear(gated, name + "down")

    def _rotate(self, x: np.ndarray, at: np.ndarray) -> np.ndarray:
        rope = self.config.rope
        angle = (at[:, None] * rope.inverse_frequencies())[:, None, :]
        turn = rope.attention_factor * np.exp(1j * angle)
        half = rope.dim // 2
        turned = (x[..., :half] + 1j * x[..., half : rope.dim]) * turn
        return np.concatenate([turned.real, turned.imag, x[..., rope.dim :]], axis=-1)

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.w[name].T + self.w.get(name + ".bias", 0.0)

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        mean = np.square(x).mean(axis=-1, keepdims=True)
        return x / np.sqrt(mean + self.config.norm_eps) * self.w[name]
