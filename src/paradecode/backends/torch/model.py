"""A plain forward over packed rows, part by part; tests compare every other core with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from paradecode.models.config import ModelConfig
from paradecode.models.mixture import Mixture
from paradecode.models.parts import NAMES, Attention, Feed, Part, StatePart, TokenInput
from paradecode.models.recurrence import Convolution, Recurrence
from paradecode.models.rope import Rope
from paradecode.models.weights import Weights

Attend = Callable[[int, Tensor, "Tensor | None", "Tensor | None"], Tensor]
"""(layer, q [N, H, d], k [N, G, d], v [N, G, d]) -> attention [N, H, d]; also stores k and v. They
are None if the layer reads the keys of another layer. The scores are ``q k / sqrt(d)``."""
Recall = Callable[[int, StatePart, Tensor], Tensor]
"""(layer, its part with a state, what enters it [N, D]) -> what the part made [N, D]; also stores
records and states."""
Turns = dict[Rope, tuple[Tensor, Tensor]]
"""Rotary positions -> cosines and sines, each [N, 1, dim / 2], of the rows of a forward."""


@dataclass
class PackedRows:
    """The layers' inputs about the rows of a forward pass, besides the residual stream.

    Attributes:
        positions: int64 [N].
        turns: cosines and sines of the rows' positions.
        canvas: bool [N, 1], whether each row belongs to a canvas.
        inputs: [N, layers, P], second embeddings of the rows' tokens, or None.
        late: the residual stream [N, D] without what the last part made, for ladder residuals.
        recall: runs parts with a state.
    """

    positions: Tensor
    turns: Turns
    canvas: Tensor
    inputs: Tensor | None = None
    late: Tensor | None = None
    recall: Recall | None = None

    def select(self, rows: Tensor) -> PackedRows:
        """Return the same of some rows, int64 [n]; for models without canvases and inputs."""
        turns = {rope: (cos[rows], sin[rows]) for rope, (cos, sin) in self.turns.items()}
        return PackedRows(self.positions[rows], turns, self.canvas)


def gelu_tanh(x: Tensor) -> Tensor:
    """Return the GELU of ``x`` in its approximation by tanh."""
    return F.gelu(x, approximate="tanh")


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu, "gelu": F.gelu, "gelu_tanh": gelu_tanh, "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
}  # fmt: skip


class Transformer:
    """A model's weights on a device, and all of its computation except the caches.

    Args:
        config: the architecture.
        weights: canonical name -> tensor.
        dtype: type of weights and activations; norms, softmax and rotary angles use at least fp32.
        device: a torch device.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config, self.dtype, self.device = config, dtype, device
        self.wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.w = {name: self.placed(name, weights) for name in config.tensors()}
        ropes = {part.rope for _, part in config.attentions() if part.rope is not None}
        self.frequencies = {
            rope: torch.from_numpy(rope.inverse_frequencies()).to(device) for rope in ropes
        }

    def placed(self, name: str, weights: Weights) -> Tensor:
        """Return a weight as a tensor on the device."""
        return torch.tensor(weights[name].float32(), device=self.device, dtype=self.dtype)

    def cached(self, layer: int) -> tuple[int, int]:
        """Return the number and the size of the K/V heads that a layer keeps in this process."""
        part = self.config.stack[layer].attention
        return (0, 0) if part is None or part.keys_of >= 0 else (part.kv_heads, part.head_dim)

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of tokens: int64 [N] -> [N, D]."""
        return F.embedding(tokens, self.w["embed"]) * self.config.embed_factor

    def enter(self, embedded: Tensor, positions: Tensor) -> Tensor:
        """Return the residual stream [N, D] before the first layer, for embeddings [N, D]."""
        if self.config.positions:
            embedded = embedded + F.embedding(positions, self.w["positions"])
        return self._norm(embedded, "embed_norm") if self.config.embed_norm else embedded

    def guessed(self, tokens: Tensor, guess: Tensor | None) -> Tensor:
        """Return the inputs of a canvas, float [K, D].

        Args:
            tokens: int64 [K], tokens of the canvas.
            guess: [K, V], logits of the previous guess, or None before the first guess.
        """
        embedded = self.embed(tokens)
        if guess is not None:
            soft = F.linear(guess.to(self.wide).softmax(-1).to(self.dtype), self.w["embed"].T)
            fed = self._norm(soft * self.config.embed_factor, "guess.norm")
            embedded = embedded + self._mlp(fed, "guess.", self.config.stack[0].feed)
        return self.bare(embedded)

    def rows(self, positions: Tensor, canvas: Tensor | None = None) -> PackedRows:
        """Return what the layers know about rows at these positions, int64 [N]."""
        if canvas is None:
            canvas = torch.zeros(1, 1, dtype=torch.bool, device=self.device)
        turns = {rope: self._angles(rope, positions) for rope in self.frequencies}
        return PackedRows(positions, turns, canvas)

    def token_inputs(self, tokens: Tensor, x: Tensor) -> Tensor:
        """Return the second embeddings [N, layers, P] of tokens, int64 [N], with streams [N, D]."""
        width = self.config.token_width
        known = F.embedding(tokens, self.w["token_embed"]) * width**0.5
        made = F.linear(x, self.w["token_project"]) * self.config.hidden_size**-0.5
        made = self._rms(made.unflatten(1, (-1, width)), "token_norm")
        return (made + known.unflatten(1, (-1, width))) * 2**-0.5

    def layer(
        self, index: int, x: Tensor, rows: PackedRows, attend: Attend,
        attends: bool = True, feeds: bool = True,
    ) -> Tensor:  # fmt: skip
        """Run a layer, or one half of it: [N, D] -> [N, D].

        Args:
            attends: whether its attention runs, and its parts with a state.
            feeds: whether its other parts run, and its scale.
        """
        layer = self.config.stack[index]
        mixers = (Attention, Convolution, Recurrence)
        for group in layer.groups:
            runs = [part for part in group if (attends if isinstance(part, mixers) else feeds)]
            if not runs:
                continue
            read = rows.late if layer.ladder and rows.late is not None else x
            made = [self._part(index, part, read, rows, attend) for part in runs]
            rows.late, x = x, self.added(index, runs[0], x, sum(made[1:], made[0]))
        if layer.scaled and feeds:
            name = f"layers.{index}."
            if self.config.canvas_length:
                scale = torch.where(
                    rows.canvas, self.w[name + "canvas_scale"], self.w[name + "scale"]
                )
            else:
                scale = self.w[name + "scale"]
            x = x * scale
        return x

    def added(self, index: int, part: Part, x: Tensor, made: Tensor) -> Tensor:
        """Return the residual stream [N, D] with what a part of a layer made."""
        return x + made

    def _part(self, index: int, part: Part, x: Tensor, rows: PackedRows, attend: Attend) -> Tensor:
        """Return what a part adds to the stream [N, D], with the norms around it."""
        name = f"layers.{index}."
        short = NAMES[type(part)]
        norm = "attn" if part.norm == "shared" else short
        entering = part.norm in ("before", "both", "shared")
        h = self._norm(x, f"{name}{norm}_norm") if entering else x
        if isinstance(part, Attention):
            made = self._mixed(index, part, h, rows, attend)
        elif isinstance(part, (Convolution, Recurrence)):
            assert rows.recall is not None
            made = rows.recall(index, part, h)
        elif isinstance(part, TokenInput):
            assert rows.inputs is not None
            gate = ACTIVATIONS[part.activation](self.linear(h, name + "input_gate"))
            made = self.linear(gate * rows.inputs[:, index], name + "input_out")
        else:
            made = self._fed(name, part, h, x)
        if part.norm in ("after", "both"):
            made = self._norm(made, f"{name}after_{short}")
        return made if part.out_factor == 1 else made * part.out_factor

    def _mixed(
        self, index: int, part: Attention, h: Tensor, rows: PackedRows, attend: Attend
    ) -> Tensor:
        """Return the attention of a layer: [N, D] -> [N, D]."""
        name, size = f"layers.{index}.", part.head_dim
        asked = h
        if part.query_rank:
            asked = self._rms(self.linear(h, name + "q_down"), name + "q_inner_norm")
        q = self._placed_heads(self.linear(asked, name + "q"), name + "q_norm", part, rows)
        if part.growth:
            grown = 1 + part.growth * torch.log(1 + rows.positions // part.growth_every)
            q = q * grown[:, None, None].to(q.dtype)
        # Attention divides the scores by the root of the head's size.
        if part.scale:
            q = q * (part.scale * math.sqrt(size))
        k = v = None
        if part.keys_of < 0:
            keys = self.linear(h, name + "k")
            values = keys if part.keys_as_values else self.linear(h, name + "v")
            v = values.unflatten(1, (-1, size))
            v = self.bare(v) if part.value_norm else v
            k = self._placed_heads(keys, name + "k_norm", part, rows)
        mixed = attend(index, q, k, v).flatten(1)
        if part.gated:
            mixed = mixed * self.linear(h, name + "attn_gate").sigmoid()
        return self.linear(mixed, name + "o")

    def _placed_heads(self, x: Tensor, norm: str, part: Attention, rows: PackedRows) -> Tensor:
        """Return queries or keys [N, H, d] of [N, H * d], normed and rotated."""

        def normed(heads: Tensor) -> Tensor:
            if part.qk_norm == "all":
                return self._rms(heads.flatten(1), norm).view_as(heads)
            return self._rms(heads, norm) if part.qk_norm == "head" else heads

        heads = x.unflatten(1, (-1, part.head_dim))
        heads = heads if part.norm_turned else normed(heads)
        if part.rope is not None:
            heads = rotate(heads, *rows.turns[part.rope])
        return normed(heads) if part.norm_turned else heads

    def _fed(self, name: str, part: Feed, h: Tensor, x: Tensor) -> Tensor:
        """Return what the MLP of a layer makes, or its experts, or both: [N, D] -> [N, D]."""
        if part.mixture is None:
            return self._mlp(h, name, part)
        if not part.size:
            return self._experts(h, name, part, part.mixture)
        heard = self.bare(x) * self.w[name + "router.scale"] * self.config.hidden_size**-0.5
        scores = F.linear(heard.to(self.wide), self.w[name + "router"].to(self.wide))
        weights, chosen = route(scores, None, part.mixture)
        weights = weights * self.w[name + "router.gain"].to(self.wide)[chosen]
        entering = self._norm(x, name + "experts_norm")
        sparse = self._sent(entering, name, part, weights, chosen, torch.zeros_like(h))
        dense = self._norm(self._mlp(h, name, part), name + "after_dense")
        return dense + self._norm(sparse, name + "after_experts")

    def _mlp(self, h: Tensor, name: str, part: Feed | None) -> Tensor:
        """Run the MLP whose weights' names begin with ``name``: [N, D] -> [N, D]."""
        assert part is not None
        inner = self.linear(h, name + "up")
        if part.activation == "swiglu_oai":
            gate = (self.linear(h, name + "gate") * part.gate_factor).clamp(max=7.0)
            inner = gate * (1.702 * gate).sigmoid() * (inner.clamp(-7.0, 7.0) + 1)
        elif part.gated:
            gate = self.linear(h, name + "gate") * part.gate_factor
            inner = ACTIVATIONS[part.activation](gate) * inner
        else:
            inner = ACTIVATIONS[part.activation](inner)
        return self.linear(inner, name + "down")

    def _experts(self, h: Tensor, name: str, part: Feed, mixture: Mixture) -> Tensor:
        """Return the weighted sum of the experts chosen for each row: [N, D] -> [N, D]."""
        biases = [
            self.w[name + part].to(self.wide) if given else None
            for part, given in (("router.logit_bias", mixture.logit_bias),
                                ("router.bias", mixture.bias))
        ]  # fmt: skip
        scores = F.linear(h.to(self.wide), self.w[name + "router"].to(self.wide), biases[0])
        if mixture.score == "relu":
            weights = self._rms(F.relu(scores), name + "router.norm")
            every = torch.arange(mixture.experts, device=h.device).expand(weights.shape)
            return self._sent(h, name, part, weights, every, torch.zeros_like(h))
        weights, chosen = route(scores, biases[1], mixture)
        mixed = torch.zeros_like(h)
        if mixture.shared_size:
            mixed = self._mlp(h, name + "shared.", part)
        if mixture.shared_gated:
            mixed = mixed * self.linear(h, name + "shared.gain").sigmoid()
        return self._sent(h, name, part, weights, chosen, mixed)

    def _sent(
        self, h: Tensor, name: str, part: Feed, weights: Tensor, chosen: Tensor, mixed: Tensor
    ) -> Tensor:
        """Return ``mixed`` [N, D] plus the weighted results of the ``chosen`` experts [N, k]."""
        weights = weights.to(h.dtype)
        for expert in chosen.unique().tolist():
            rows, places = torch.nonzero(chosen == expert, as_tuple=True)
            made = self._mlp(h[rows], f"{name}experts.{expert}.", part)
            mixed.index_add_(0, rows, made * weights[rows, places, None])
        return mixed

    def logits(self, x: Tensor) -> Tensor:
        """Apply the final norm and the LM head, in at least fp32: [R, D] -> [R, V]."""
        c = self.config
        head = self.w["embed" if c.tied_head else "head"]
        return self._capped(F.linear(self._norm(x, "norm"), head, self.w.get("head.bias")))

    def _capped(self, logits: Tensor) -> Tensor:
        c, logits = self.config, logits.to(self.wide)
        if c.logit_factor != 1:
            logits = logits * c.logit_factor
        return torch.tanh(logits / c.softcap) * c.softcap if c.softcap else logits

    def _angles(self, rope: Rope, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rotary cosines and sines: int64 [N] -> two tensors [N, 1, rope.dim / 2]."""
        angle = positions[:, None].to(torch.float64) * self.frequencies[rope]
        scale = rope.attention_factor
        cos, sin = (scale * angle.cos()).to(self.wide), (scale * angle.sin()).to(self.wide)
        return cos[:, None, :], sin[:, None, :]

    def linear(self, x: Tensor, name: str) -> Tensor:
        """Return ``x`` [N, in] times the matrix with this name, plus its bias: [N, out]."""
        return F.linear(x, self.w[name], self.w.get(name + ".bias"))

    def _norm(self, x: Tensor, name: str) -> Tensor:
        if self.config.norm_kind == "rms":
            return self._rms(x, name)
        wide, bias = x.to(self.wide), self.w.get(name + ".bias")
        centred = wide - wide.mean(-1, keepdim=True)
        made = self.bare(centred).to(x.dtype) * self.w[name]
        return made if bias is None else made + bias

    def _rms(self, x: Tensor, name: str) -> Tensor:
        return self.bare(x) * self.w[name]

    def bare(self, x: Tensor, eps: float = 0.0) -> Tensor:
        """Return the RMSNorm of ``x`` without a gain; an ``eps`` of 0 is the model's."""
        wide = x.to(self.wide)
        eps = eps or self.config.norm_eps
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        return (wide * scale).to(x.dtype)


def route(logits: Tensor, bias: Tensor | None, mixture: Mixture) -> tuple[Tensor, Tensor]:
    """Return weights [N, chosen] and experts, int64 [N, chosen], for logits [N, experts]."""
    scores = logits.sigmoid() if mixture.score == "sigmoid" else logits.softmax(-1)
    ranked = scores if bias is None else scores + bias
    weights = ranked if mixture.biased_weights else scores
    if mixture.groups > 1:
        grouped = ranked.unflatten(-1, (mixture.groups, -1))
        best = grouped.topk(2, -1).values.sum(-1).topk(mixture.chosen_groups, -1).indices
        left_out = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter(-1, best, False)
        ranked = grouped.masked_fill(left_out[..., None], -torch.inf).flatten(-2)
    chosen = ranked.topk(mixture.chosen, -1).indices
    weights = weights.gather(-1, chosen)
    if mixture.normalised:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return weights * mixture.scale, chosen


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the leading ``2 * cos.shape[-1]`` dimensions of [N, H, d], pairing i with i + half."""
    half = cos.shape[-1]
    a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    wide_a, wide_b = a.to(cos.dtype), b.to(cos.dtype)
    turned = torch.cat([wide_a * cos - wide_b * sin, wide_b * cos + wide_a * sin], -1)
    return torch.cat([turned.to(x.dtype), rest], -1)


def attention(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor, part: Attention | None = None,
    distance: Tensor | None = None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Compute the grouped-query attention of one sequence.

    Args:
        q: [K, H, d].
        k, v: [S, G, d].
        seen: bool [K, S].
        part: what the layer's scores have beside ``q k / sqrt(d)``; None: nothing.
        distance: [K, S], positions of keys minus those of queries, for ALiBi.
        sinks: [H], the scores that take weight and have no value.

    Returns:
        [K, H, d].
    """
    if part is None or not (part.softcap or part.alibi or part.sinks):
        return F.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            attn_mask=seen[None, None],
            enable_gqa=True,
        )[0].transpose(0, 1)
    weights = attention_weights(q, k, seen, part, distance, sinks).to(q.dtype)
    grouped = weights.unflatten(1, (v.shape[1], -1))
    return torch.einsum("aghs,sgd->aghd", grouped, v).flatten(1, 2)


def attention_weights(
    q: Tensor, k: Tensor, seen: Tensor, part: Attention | None = None,
    distance: Tensor | None = None, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Return the attention weights [A, H, S] of queries q [A, H, d] over keys k [S, G, d].

    A key that is not seen has weight 0. The other arguments are those of :func:`attention`.
    """
    grouped = (q * q.shape[-1] ** -0.5).unflatten(1, (k.shape[1], -1))
    scores = torch.einsum("aghd,sgd->aghs", grouped, k).flatten(1, 2)
    wide = scores.double() if scores.dtype == torch.float64 else scores.float()
    if part is not None and part.softcap:
        wide = torch.tanh(wide / part.softcap) * part.softcap
    if part is not None and part.alibi and distance is not None:
        slopes = torch.tensor(part.slopes(), dtype=wide.dtype, device=wide.device)
        wide = wide + slopes[:, None] * distance[:, None]
    wide = wide.masked_fill(~seen[:, None], -torch.inf)
    if sinks is None:
        return wide.softmax(-1)
    more = sinks.to(wide.dtype)[None, :, None].expand(len(wide), -1, 1)
    return torch.cat([wide, more], -1).softmax(-1)[..., :-1]


def pack(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate along rows; a single tensor is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts))
