"""A NumPy float64 forward of one sequence without any cache, which every span must equal."""

import math
from collections.abc import Sequence

import numpy as np

from paradecode.core.layers import Half, Layer
from paradecode.models.config import ModelConfig, Rope, uniform
from paradecode.models.mixture import Mixture
from paradecode.models.parts import NAMES, Attention, Feed, Part
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
        self.kept = dict[int, tuple[np.ndarray, np.ndarray]]()
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
        c, x = self.config, self.hidden(tokens, positions, seen, embeddings, layers)[-1]
        head = self.w["embed" if c.tied_head else "head"]
        logits = (self._norm(x, "norm") @ head.T + self.w.get("head.bias", 0.0)) * c.logit_factor
        return _capped(logits, c.softcap)

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
        x = self.w["embed"][list(tokens)] * c.embed_factor if embeddings is None else embeddings
        x = x.astype(np.float64)
        at = np.arange(len(x)) if positions is None else np.asarray(positions)
        seen = np.tri(len(x), dtype=bool) if seen is None else seen
        if c.positions:
            x = x + self.w["positions"][at]
        if c.embed_norm:
            x = self._norm(x, "embed_norm")
        second = self._second(tokens, x) if c.token_width else None
        # Of a ladder: the stream without what the last part made.
        states, late = [x], x
        for index in range(c.layers) if layers is None else layers:
            layer, half = index if isinstance(index, Half) else (index, "both")
            shape, x = c.stack[layer], states[-1]
            for group in shape.groups:
                read = late if shape.ladder else x
                for part in group:
                    if half not in ("both", "attention" if isinstance(part, Attention) else "mlp"):
                        continue
                    made = part.out_factor * self._part(layer, part, read, at, seen, second)
                    late, x = x, x + made
            if shape.scaled and half != "attention":
                x = x * self.w[f"layers.{layer}.scale"]
            states.append(x)
        return states

    def _second(self, tokens: Sequence[int], x: np.ndarray) -> np.ndarray:
        """Return the second embeddings [N, layers, P]."""
        c, shape = self.config, (len(x), -1, self.config.token_width)
        made = (x @ self.w["token_project"].T / np.sqrt(c.hidden_size)).reshape(shape)
        known = self.w["token_embed"][list(tokens)].reshape(shape) * np.sqrt(c.token_width)
        return (self._rms(made, self.w["token_norm"]) + known) / np.sqrt(2)

    def _part(
        self, layer: int, part: Part, x: np.ndarray, at: np.ndarray, seen: np.ndarray,
        second: np.ndarray | None,
    ) -> np.ndarray:  # fmt: skip
        name, own = f"layers.{layer}.", NAMES[type(part)]
        before = "attn" if part.norm == "shared" else own
        h = x if part.norm in ("none", "after") else self._norm(x, f"{name}{before}_norm")
        if isinstance(part, Attention):
            made = self._attention(layer, part, h, at, seen)
        elif isinstance(part, Feed):
            made = self._feed(name, part, h, x)
        else:
            assert second is not None
            gate = ACTIVATIONS[part.activation](self._linear(h, name + "input_gate"))
            made = self._linear(gate * second[:, layer], name + "input_out")
        return self._norm(made, f"{name}after_{own}") if part.norm in ("after", "both") else made

    def _attention(
        self, layer: int, part: Attention, h: np.ndarray, at: np.ndarray, seen: np.ndarray
    ) -> np.ndarray:
        name, size = f"layers.{layer}.", part.head_dim
        asked = h
        if part.query_rank:
            asked = self._rms(self._linear(h, name + "q_down"), self.w[name + "q_inner_norm"])
        q = self._heads(part, asked, at, name, "q")
        q *= (1 + part.growth * np.log(1 + at // part.growth_every))[:, None, None]
        if part.keys_of < 0:
            k = self._heads(part, h, at, name, "k")
            values = self._linear(h, name + ("k" if part.keys_as_values else "v"))
            v = values.reshape(len(h), -1, size)
            self.kept[layer] = k, self._rms(v, 1.0) if part.value_norm else v
        k, v = self.kept[layer if part.keys_of < 0 else part.keys_of]
        if part.window:
            seen = seen & (at[None, :] > at[:, None] - part.window)
        mixed = np.empty_like(q)
        shares = self.shares[layer] = np.empty((len(h), part.heads, len(h)))
        for head in range(part.heads):
            group = head // (part.heads // part.kv_heads)
            scores = _capped(q[:, head] @ k[:, group].T * part.factor, part.softcap)
            if part.alibi:
                scores = scores + part.slopes()[head] * (at[None, :] - at[:, None])
            scores = np.where(seen, scores, -np.inf)
            sink = self.w[name + "sinks"][head] if part.sinks else -np.inf
            top = np.maximum(scores.max(axis=1, keepdims=True), sink)
            p = np.exp(scores - top)
            shares[:, head] = p / (p.sum(axis=1, keepdims=True) + np.exp(sink - top))
            mixed[:, head] = shares[:, head] @ v[:, group]
        return self._linear(mixed.reshape(len(h), -1), name + "o")

    def _heads(
        self, part: Attention, x: np.ndarray, at: np.ndarray, name: str, which: str
    ) -> np.ndarray:
        """Return queries or keys [N, H, d], normed and rotated."""
        x = self._linear(x, name + which)
        gain = self.w.get(f"{name}{which}_norm", np.ones(0))

        def normed(x: np.ndarray) -> np.ndarray:
            if part.qk_norm == "head":
                return self._rms(x, gain)
            whole = x.reshape(len(x), -1)
            return (self._rms(whole, gain) if part.qk_norm == "all" else whole).reshape(x.shape)

        x = x.reshape(len(x), -1, part.head_dim)
        if part.norm_turned:
            return normed(_rotate(x, at, part.rope))
        return _rotate(normed(x), at, part.rope)

    def _feed(self, name: str, part: Feed, h: np.ndarray, x: np.ndarray) -> np.ndarray:
        made = self._mlp(name, part, h) if part.size else np.zeros_like(h)
        if part.mixture is None:
            return made
        entering = self._norm(x, name + "experts_norm") if part.size else h
        mixed = self._experts(name, part, part.mixture, entering, x if part.size else h)
        if not part.size:
            return mixed
        dense = self._norm(made, name + "after_dense")
        return dense + self._norm(mixed, name + "after_experts")

    def _experts(
        self, name: str, part: Feed, mixture: Mixture, h: np.ndarray, asked: np.ndarray
    ) -> np.ndarray:
        """Return the dense formula: all experts, of which most have weight 0."""
        w = self.w
        if mixture.scaled:
            asked = self._rms(asked, w[name + "router.scale"] / np.sqrt(self.config.hidden_size))
        logits = asked @ w[name + "router"].T + w.get(name + "router.logit_bias", 0.0)
        if mixture.score == "relu":
            weights = self._rms(np.maximum(logits, 0), w[name + "router.norm"])
        else:
            scores = np.exp(logits - logits.max(axis=1, keepdims=True))
            scores = scores / scores.sum(axis=1, keepdims=True)
            if mixture.score == "sigmoid":
                scores = 1 / (1 + np.exp(-logits))
            ranked = scores + w.get(name + "router.bias", 0.0)
            best = np.argsort(-ranked, axis=1, kind="stable")[:, : mixture.chosen]
            weights = np.zeros_like(scores)
            np.put_along_axis(weights, best, np.take_along_axis(scores, best, 1), 1)
            if mixture.normalised:
                weights = weights / weights.sum(axis=1, keepdims=True)
        weights = weights * mixture.scale * w.get(name + "router.gain", 1.0)
        made = self._mlp(name + "shared.", part, h) if mixture.shared_size else np.zeros_like(h)
        for expert in range(mixture.experts):
            made = made + weights[:, [expert]] * self._mlp(f"{name}experts.{expert}.", part, h)
        return made

    def _mlp(self, name: str, part: Feed, h: np.ndarray) -> np.ndarray:
        up = self._linear(h, name + "up")
        if part.activation == "swiglu_oai":
            gate = np.minimum(self._linear(h, name + "gate") * part.gate_factor, 7)
            inner = gate / (1 + np.exp(-1.702 * gate)) * (np.clip(up, -7, 7) + 1)
        elif part.gated:
            gate = self._linear(h, name + "gate") * part.gate_factor
            inner = ACTIVATIONS[part.activation](gate) * up
        else:
            inner = ACTIVATIONS[part.activation](up)
        return self._linear(inner, name + "down")

    def _linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return x @ self.w[name].T + self.w.get(name + ".bias", 0.0)

    def _norm(self, x: np.ndarray, name: str) -> np.ndarray:
        if self.config.norm_kind == "layer":
            x = x - x.mean(axis=-1, keepdims=True)
        return self._rms(x, self.w[name]) + self.w.get(name + ".bias", 0.0)

    def _rms(self, x: np.ndarray, gain: np.ndarray | float) -> np.ndarray:
        mean = np.square(x).mean(axis=-1, keepdims=True)
        return x / np.sqrt(mean + self.config.norm_eps) * gain


ACTIVATIONS = {
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
}


def _capped(x: np.ndarray, cap: float) -> np.ndarray:
    return cap * np.tanh(x / cap) if cap else x


def _rotate(x: np.ndarray, at: np.ndarray, rope: Rope | None) -> np.ndarray:
    if rope is None:
        return x
    angle = (at[:, None] * rope.inverse_frequencies())[:, None, :]
    turn = rope.attention_factor * np.exp(1j * angle)
    half = rope.dim // 2
    turned = (x[..., :half] + 1j * x[..., half : rope.dim]) * turn
    return np.concatenate([turned.real, turned.imag, x[..., rope.dim :]], axis=-1)
