"""Draft heads in PyTorch: the steps of :mod:`paradecode.models.heads.build` with gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode.backends.torch.model import Transformer, rotate
from paradecode.models.heads import HeadFile
from paradecode_lab.training.batched import spread

Keys = tuple[Tensor, Tensor, list[int]]
"""Keys and values, each [N, G, size], of rows, and the number of rows of each text."""


@dataclass(frozen=True, eq=False)
class Target:
    """The weights that heads share with their target, in float32.

    Attributes:
        embed: [V, D], the embeddings.
        norm: [D], gain of the last norm.
        rows: [v, D], the rows of the LM head for the draft's vocabulary.
        epsilon: epsilon of the norm.
        model: the target's layers, for heads whose rows pass them.
        last: name -> tensor of the last layer's keys and values, for heads that see them.
        context: number of positions of the target.
    """

    embed: Tensor
    norm: Tensor
    rows: Tensor
    epsilon: float
    model: Transformer | None = None
    last: Mapping[str, Tensor] = field(default_factory=dict)
    context: int = 0

    def final(self, states: Tensor) -> Tensor:
        """Apply the target's last norm to its last states."""
        return rms(states, self.norm, self.epsilon)


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of several texts, one text after the other.

    Row t of a text has the target's states at position t and the token at t + 1. Level i of a draft
    from this row predicts the token at t + 2 + i.

    Attributes:
        features: float32 [N, F], the states that the head reads.
        tokens: int64 [N], the token after each row.
        spans: (first row, number of rows, first row that drafts) of each text. All rows from there
            on draft except the last one, whose next tokens are unknown.
        begun: int64 [texts], the token of each text's first row.
    """

    features: Tensor
    tokens: Tensor
    spans: tuple[tuple[int, int, int], ...]
    begun: Tensor

    def drafting(self, level: int) -> tuple[Tensor, ...]:
        """Return, for each text, the rows whose draft at this level can be compared with the text.

        Each tensor is int64 and may be empty.
        """
        every = [np.arange(begin, max(begin, first + count - 1 - level))
                 for first, count, begin in self.spans]  # fmt: skip
        return torch.as_tensor(np.concatenate(every)).split([len(each) for each in every])

    def within(self, wanted: Sequence[Tensor]) -> Tensor:
        """Return the positions of rows within their texts, int64 [N].

        Args:
            wanted: for each text the indices of its rows among all rows.
        """
        firsts = [first for first, _, _ in self.spans]
        begins = torch.as_tensor(np.repeat(firsts, [len(each) for each in wanted]))
        return torch.cat([*wanted]) - begins

    @property
    def whole(self) -> tuple[Tensor, ...]:
        """The indices of all rows, split by text."""
        return torch.arange(len(self.tokens)).split([count for _, count, _ in self.spans])


def rms(x: Tensor, gain: Tensor, epsilon: float) -> Tensor:
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon) * gain


class HeadNetwork:
    """A draft head whose tensors can be trained.

    Attributes:
        file: the head before training.
        scale: [F], factors of the features before ``fc`` of EAGLE-3 and P-EAGLE. Layers differ in
            size, and a matrix learns best from inputs of size 1. A stored head has the factors in
            ``fc``.
        parameters: name -> trained tensor.
        layers: number of layers with attention.
        heads: number of Medusa's heads, or of Clover's levels with blocks of their own.
        progress: progress of the training, from 0 to 1; 1 when the head is used.
        random: random generator of the present training step.
        hard: weight of the text's own token in the cross-entropy, from 0 to 1; the target's
            distribution has the rest.
        match: weight of a second loss: the distance between the inputs of the head's and the
            target's LM head (SmoothL1, the mean over a row's numbers).
    """

    match = 0.0
    hard = 0.0
    progress = 1.0
    random = np.random.default_rng(0)

    def __init__(self, file: HeadFile, target: Target, scale: Tensor) -> None:
        self.file, self.target, self.scale = file, target, scale
        self.parameters = {
            name: torch.as_tensor(np.array(tensor, np.float32))
            for name, tensor in file.tensors.items() if tensor.dtype.kind == "f"
        }  # fmt: skip
        inverse = file.rope.inverse_frequencies() if file.heads else np.zeros(0)
        self.frequencies = torch.as_tensor(inverse)
        self.layers = sum(name.endswith("q_proj.weight") for name in self.parameters)
        self.heads = sum(name.endswith(".0.linear.weight") for name in self.parameters)

    def levels(self, rows: Rows, count: int) -> list[Tensor]:
        """Return the logits, [rows that draft, v], of each level, one text after the other."""
        return [self.say(state, i) for i, state in enumerate(self.states(rows, count))]

    def states(self, rows: Rows, count: int) -> list[Tensor]:
        """Return the inputs of the LM head, [rows that draft, D], at each level.

        From the second level on, the head sees its own states, as in a draft. It sees the tokens of
        the text, as if all earlier drafts were right (training-time test, EAGLE-3).
        """
        if self.file.kind == "medusa":
            return [self._medusa(rows, level) for level in range(count)]
        if self.file.kind == "kangaroo":
            return self._behind_the_exit(rows, count)
        p, drafts = self.parameters, rows.drafting(0)
        keys: list[list[Keys]] = [[] for _ in range(self.layers)]
        made, said = torch.empty(0), []
        begins = [begin - first for first, _, begin in rows.spans]
        for level in range(count):
            wanted = rows.drafting(level)
            if level == 0:
                state, token, entered = self._enter(rows.features), rows.tokens, rows.whole
            else:
                token, entered = rows.tokens[torch.cat(wanted) + level], wanted
                if self.file.kind == "p-eagle":
                    masked = F.linear(p["mask_hidden"].reshape(1, -1), p["fc.weight"])
                    state = masked.expand(len(token), -1)
                    token = torch.full_like(token, self.file.mask_token)
                else:
                    state = self._back(made[first_rows(sizes_of(drafts), sizes_of(wanted))])
            places = rows.within(entered) + level
            for number in range(self.layers):
                # All rows of the text pass every layer. In the last layer, rows that do not draft
                # only give keys and values.
                last = level == 0 and number == self.layers - 1
                state = self._layer(
                    number, state, token, places, sizes_of(entered), wanted if last else None,
                    begins if level or last else [0] * len(begins), keys[number],
                )  # fmt: skip
            made, drafts = state, wanted
            said.append(self._norm(state, "norm") if "norm.weight" in p else state)
        return said

    def say(self, state: Tensor, level: int) -> Tensor:
        """Return the logits [n, v] that a level's LM head gives for its inputs."""
        return F.linear(state, self.parameters.get("lm_head.weight", self.target.rows)).float()

    def _behind_the_exit(self, rows: Rows, count: int) -> list[Tensor]:
        """Return the inputs of the LM head after Kangaroo's layers, at each level.

        The guess at level i is that of the row i + 1 positions later, because the target's first
        layers read every draft token.
        """
        wanted, state, texts = rows.drafting(0), rows.features, rows.whole
        for number in range(self.layers):
            last = number == self.layers - 1
            begins = [begin - first + 1 if last else 0 for first, _, begin in rows.spans]
            asked = [each + 1 for each in wanted] if last else None
            state = self._layer(
                number, state, rows.tokens, rows.within(texts), sizes_of(texts), asked, begins, []
            )
        every = self._norm(state, "norm").split(sizes_of(wanted))
        return [torch.cat([each[level:] for each in every]) for level in range(count)]

    def _enter(self, features: Tensor) -> Tensor:
        if self.file.kind in ("eagle", "mtp", "dovetail"):
            return self.target.final(features) if self.file.normed_features else features
        return F.linear(features * self.scale, self.parameters["fc.weight"])

    def stored(self) -> dict[str, NDArray[np.float32]]:
        """Return the tensors as they are stored in a folder."""
        whole = {name: tensor.detach().cpu().numpy() for name, tensor in self.parameters.items()}
        return for_features(self.file.kind, whole, self.scale.cpu().numpy())

    def _back(self, state: Tensor) -> Tensor:
        return self._norm(state, "norm") if self.file.feeds_normed else state

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms(x, self.parameters[f"{name}.weight"], self.file.epsilon)

    def _first(self, state: Tensor, token: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input of the first attention, and the residual that its output is added to."""
        p, kind, name = self.parameters, self.file.kind, "layers.0."
        if kind == "kangaroo":
            return self._norm(state, f"{name}input_layernorm"), state
        embedded = F.embedding(token, self.target.embed)
        if kind in ("eagle3", "p-eagle"):
            normed = self._norm(state, f"{name}hidden_norm")
            both = torch.cat([self._norm(embedded, f"{name}input_layernorm"), normed], -1)
            return both, normed if self.file.normed_residual else state
        if kind == "mtp":
            both = torch.cat([self._norm(embedded, "enorm"), self._norm(state, "hnorm")], -1)
            into = F.linear(both, p["eh_proj.weight"]).float()
            return self._norm(into, f"{name}input_layernorm"), into
        into = F.linear(torch.cat([embedded, state], -1), p["fc.weight"], p.get("fc.bias")).float()
        return into, into

    def _layer(
        self, number: int, state: Tensor, token: Tensor, places: Tensor, sizes: list[int],
        asked: Sequence[Tensor] | None, begins: Sequence[int], keys: list[Keys],
    ) -> Tensor:  # fmt: skip
        """Return the states after a layer, and add this level's keys and values to ``keys``.

        Args:
            number: index of the layer.
            state: [N, D], the layer's inputs.
            token: int64 [N], the token after each row, which the first layer reads.
            places: int64 [N], positions of the rows.
            sizes: number of rows of each text.
            asked: for each text the rows whose states are returned; None means all.
            begins: for each text the position of the first such row at level 0.
            keys: keys and values of earlier levels.
        """
        name = f"layers.{number}."
        if number == 0:
            x, going = self._first(state, token)
        else:
            x, going = self._norm(state, f"{name}input_layernorm"), state
        queries, k, v = self.projected(number, x, places)
        keys.append((k, v, sizes))
        if asked is not None:
            rows, sizes = torch.cat([*asked]), sizes_of(asked)
            queries, going = queries[rows], going[rows]
        return self.after(name, going, attend_each(queries, sizes, begins, keys))

    def projected(self, number: int, x: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each [n, heads, size], of rows at these positions."""
        turn = self.turn(places)
        q, k, v = (self.heads_of(f"layers.{number}.self_attn.{part}_proj", x) for part in "qkv")
        return rotate(q, *turn), rotate(k, *turn), v

    def turn(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return cosines and sines, each [n, 1, dim / 2], that rotate queries and keys."""
        angles = places.double()[:, None, None] * self.frequencies
        scale = self.file.rope.attention_factor
        return (scale * angles.cos()).float(), (scale * angles.sin()).float()

    def heads_of(self, name: str, x: Tensor) -> Tensor:
        """Multiply rows by a matrix, and split by head: [n, heads, size].

        The matrix's bias is added if it has one.
        """
        p = self.parameters
        made = F.linear(x, p[f"{name}.weight"], p.get(f"{name}.bias")).float()
        return made.unflatten(-1, (-1, self.file.head_dim))

    def after(self, name: str, going: Tensor, mixed: Tensor) -> Tensor:
        """Finish the layer ``name``: return its states.

        Args:
            going: the residual that the attention's result is added to.
            mixed: the result of the attention, before the output projection.
        """
        p = self.parameters
        state = going + F.linear(mixed, p[f"{name}self_attn.o_proj.weight"])
        if f"{name}mlp.gate_proj.weight" not in p:
            return state.float()
        n = self._norm(state, f"{name}post_attention_layernorm")
        gate = F.silu(F.linear(n, p[f"{name}mlp.gate_proj.weight"]))
        inner = gate * F.linear(n, p[f"{name}mlp.up_proj.weight"])
        return (state + F.linear(inner, p[f"{name}mlp.down_proj.weight"])).float()

    def _medusa(self, rows: Rows, level: int) -> Tensor:
        x = self.target.final(rows.features[torch.cat(rows.drafting(level))])
        p, depth = self.parameters, 0
        while f"{level}.{depth}.linear.weight" in p:
            name = f"{level}.{depth}.linear"
            x = x + F.silu(F.linear(x, p[f"{name}.weight"], p[f"{name}.bias"])).float()
            depth += 1
        return x


def for_features(
    kind: str, tensors: Mapping[str, NDArray[Any]], scale: NDArray[np.float32]
) -> dict[str, NDArray[Any]]:
    """Return a head's tensors for unscaled features, made from those for features times ``scale``.

    With 1 / ``scale`` it converts the other way.
    """
    made = dict(tensors)
    if kind in ("eagle3", "p-eagle"):
        made["fc.weight"] = made["fc.weight"] * scale
    if kind == "p-eagle":
        made["mask_hidden"] = made["mask_hidden"] / scale
    return made


def sizes_of(rows: Sequence[Tensor]) -> list[int]:
    """Return the number of rows of each text."""
    return [len(each) for each in rows]


def first_rows(sizes: Sequence[int], kept: Sequence[int]) -> Tensor:
    """Return the indices of the rows that remain if only the first ones of each group remain.

    Args:
        sizes: number of rows of each group.
        kept: number of rows of each group that remain.
    """
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(int)
    return torch.as_tensor(np.concatenate([np.arange(s, s + n) for s, n in zip(starts, kept)]))


def attend_each(q: Tensor, sizes: list[int], begins: Sequence[int], keys: Sequence[Keys]) -> Tensor:
    """Compute :func:`attend` for several texts, one after the other: float32 [n, H * size].

    Args:
        q: [n, H, size], the queries.
        sizes: number of queries of each text.
        begins: position of each text's first query.
        keys: keys and values of the texts, then of levels 1, 2, ... of the drafts.
    """
    if q.device.type == "cpu":  # A rectangle takes a fifth longer here.
        levels = [list(zip(k.split(counts), v.split(counts))) for k, v, counts in keys]
        return torch.cat([
            attend(query, *levels[0][i], begin, [level[i] for level in levels[1:]])
            for i, (query, begin) in enumerate(zip(q.split(sizes), begins))
        ])  # fmt: skip
    return attend_rectangle(q, sizes, begins, keys)


def attend_rectangle(
    q: Tensor, sizes: Sequence[int], begins: Sequence[int], keys: Sequence[Keys]
) -> Tensor:
    """Compute the same as :func:`attend_each`, for all texts in one operation."""
    (k, v, counts), own = keys[0], keys[1:]
    groups = k.shape[1]
    wide = q.unflatten(1, (groups, q.shape[1] // groups)) * q.shape[-1] ** -0.5
    rows, texts = _rectangle(sizes), _rectangle(counts)
    scores = torch.einsum("bnghd,bmgd->bnghm", spread(wide, rows), spread(k, texts))
    behind = torch.as_tensor(np.array(begins))[:, None, None] + (
        torch.arange(rows.shape[1])[:, None] - torch.arange(texts.shape[1])
    )
    scores = scores.masked_fill((behind < 0)[:, :, None, None], -torch.inf)
    at = rows.flatten().nonzero()[:, 0]
    parts, said = [scores.flatten(0, 1).index_select(0, at)], []
    for key, value, lengths in own:
        kept = first_rows(lengths, sizes)
        parts.append(torch.einsum("nghd,ngd->ngh", wide, key[kept])[..., None])
        said.append(value[kept])
    weights = torch.cat(parts, -1).float().softmax(-1)
    seen = spread(weights[..., : texts.shape[1]], rows)
    mixed = torch.einsum("bnghm,bmgd->bnghd", seen, spread(v, texts))
    mixed = mixed.flatten(0, 1).index_select(0, at)
    for number, value in enumerate(said, texts.shape[1]):
        mixed = mixed + weights[..., number, None] * value[:, :, None]
    return mixed.flatten(1)


def _rectangle(sizes: Sequence[int]) -> Tensor:
    """Return bool [texts, longest]; true entries are the rows of each text."""
    return torch.arange(max(sizes)) < torch.as_tensor(np.array(sizes))[:, None]


def attend(
    q: Tensor, keys: Tensor, values: Tensor, begin: int, own: Sequence[tuple[Tensor, Tensor]],
    window: int = 1 << 40,
) -> Tensor:  # fmt: skip
    """Compute attention: float32 [n, H * size].

    Query j sees the text's rows up to ``begin`` + j, and the earlier levels of its own draft.

    Args:
        q: [n, H, size], the queries.
        keys, values: [m, G, size], keys and values of the text.
        begin: position of the first query in the text.
        own: keys and values, each [at least n, G, size], of levels 1, 2, ...
        window: a query does not see rows more than this many positions before it.
    """
    rows, heads, size = q.shape
    groups = keys.shape[1]
    wide = q.unflatten(1, (groups, heads // groups)) * size**-0.5
    scores = [torch.einsum("nghd,mgd->nghm", wide, keys)]
    behind = begin + torch.arange(rows)[:, None] - torch.arange(len(keys))
    seen = (behind >= 0) & (behind <= window)
    scores[0] = scores[0].masked_fill(~seen[:, None, None], -torch.inf)
    scores += [torch.einsum("nghd,ngd->ngh", wide, k[:rows])[..., None] for k, _ in own]
    weights = torch.cat(scores, -1).float().softmax(-1)
    mixed = torch.einsum("nghm,mgd->nghd", weights[..., : len(keys)], values)
    for number, (_, v) in enumerate(own):
        mixed = mixed + weights[..., len(keys) + number, None] * v[:rows, :, None]
    return mixed.flatten(1)
