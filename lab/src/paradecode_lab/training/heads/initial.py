"""Make new heads: choose their sizes and vocabulary, and weights that copy the target's state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paradecode.core.checks import meant
from paradecode.core.errors import InvalidInput
from paradecode.models.checkpoint import Checkpoint
from paradecode.models.config import ModelConfig, Rope
from paradecode.models.heads import HeadFile
from paradecode.models.heads.flexdraft import check_layers, own_attention
from paradecode.models.weights import Weights
from paradecode_lab.training.heads.chimera import chimera_weights
from paradecode_lab.training.heads.clover import clover_weights
from paradecode_lab.training.heads.dovetail import dovetail_weights
from paradecode_lab.training.heads.falcon import TOGETHER, falcon_weights
from paradecode_lab.training.heads.longspec import longspec_weights
from paradecode_lab.training.heads.m2r2 import stream_weights
from paradecode_lab.training.heads.texts import HeadText

METHODS = {
    "eagle3": "eagle", "eagle1": "eagle", "p-eagle": "p-eagle", "medusa": "medusa", "mtp": "mtp",
    "clover": "clover", "clover-2": "clover", "falcon": "falcon", "chimera": "chimera",
    "longspec": "longspec", "dovetail": "dovetail", "kangaroo": "kangaroo", "m2r2": "m2r2",
    "ppd": "ppd", "hidden-transfer": "hidden-transfer", "flexdraft": "flexdraft",
}  # fmt: skip
"""Kind of head that can be trained -> name of the method that drafts with it."""
DECAYS = {"clover": 0.7, "clover-2": 0.7, "falcon": 1.0, "hidden-transfer": 1.0, "flexdraft": 1.0}
"""Kind of head -> weight of a level's loss relative to the level before it.

Other heads use ``HeadPlan.decay``.
"""
RANK = 256
"""Default inner width of FlexDraft's calibration MLP, as published."""
SHARE = 8
"""The default width of M2R2's additions is the width of the states divided by this number."""
CLOVERS = ("clover", "clover-2")
ONE_LAYER = ("eagle1", "mtp", "falcon", "chimera", "longspec")
EXITS = ("kangaroo", "m2r2")
"""Heads that draft from the output of one of the target's first layers.

The target's layers up to there run on each draft token.
"""
OF_ROWS = ("ppd", "hidden-transfer", "flexdraft")
"""Heads that add rows to the target's forward; these rows go through the target's own layers."""
Array = NDArray[np.float32]


@dataclass(frozen=True)
class HeadShape:
    """Sizes of a head.

    Attributes:
        method: one of METHODS.
        taps: layers of the target, counted from 0; their meaning depends on the method. EAGLE-3 and
            P-EAGLE read the outputs of these layers (empty: an early, a middle and the last layer).
            Kangaroo drafts from the output of one layer (empty: the second). For M2R2, the named
            layer is the last one that runs for a draft; its stream also passes the next layer
            (empty: a sixth of the layers). Rows of Hidden Transfer and masks of FlexDraft enter
            after the named layer (empty: two thirds of the layers). Hidden Transfer takes one layer
            for all levels, or one for each level, ascending.
        layers: number of layers of EAGLE-3, P-EAGLE, Clover, Dovetail and Kangaroo; number of
            residual blocks in each Medusa head.
        inner: width of the MLP (0: the target's; Kangaroo then has no MLP), of FlexDraft's
            calibration (0: RANK), or of M2R2's additions (0: an eighth of the states' width).
        vocabulary: number of tokens that can be drafted: the most frequent ones in the training
            texts.
        levels: number of heads of Medusa and Chimera, of prompt tokens of PPD, of matrices of
            Hidden Transfer, of guessing masks of FlexDraft, or of Clover's levels with a block of
            their own.
        own_rows: whether the head trains its own rows of the LM head, which are at first the
            target's. Medusa, Clover and LongSpec have none.
    """

    method: str = "eagle3"
    taps: tuple[int, ...] = ()
    layers: int = 1
    inner: int = 0
    vocabulary: int = 8192
    levels: int = 4
    own_rows: bool = True

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InvalidInput("METHOD", self.method, meant(self.method, METHODS))
        if self.layers > 1 and self.method in ONE_LAYER:
            raise InvalidInput("--layers", self.layers, f"{self.method} has one layer")

    def width(self, config: ModelConfig) -> int:
        """Return ``inner``, or the method's default if it is 0; a result of 0 means no MLP."""
        usual = {"kangaroo": 0, "flexdraft": RANK, "m2r2": max(1, config.hidden_size // SHARE)}
        return self.inner or usual.get(self.method, config.intermediate_size)

    def entered(self, config: ModelConfig) -> tuple[int, ...]:
        """Return the layers, from 0, that Hidden Transfer's rows or FlexDraft's masks follow.

        For Hidden Transfer, each level's row enters after its layer. For FlexDraft, the masks pass
        every layer that comes after one of these.

        Raises:
            InvalidInput: ``taps`` has a wrong number of layers, or layers out of range or order.
        """
        last = config.layers - 2
        taps = self.taps or (max(2 * config.layers // 3 - 1, 0),)
        one = len(taps) == 1
        several = self.method == "hidden-transfer" and len(taps) == self.levels
        if list(taps) != sorted(taps) or not 0 <= taps[0] <= taps[-1] <= last or not one | several:
            fix = f"name one layer from 0 to {last}"
            if self.method == "hidden-transfer":
                fix += f", or {self.levels}, none before the last"
            raise InvalidInput("--taps", list(taps), fix)
        if self.method == "flexdraft":
            return tuple(range(taps[0], last + 1))
        return taps * self.levels if one else taps

    def tapped(self, config: ModelConfig) -> tuple[int, ...]:
        """Return the layers, counted from 0, whose outputs the head reads; -1 is the last layer.

        Raises:
            InvalidInput: ``taps`` does not fit the method or the model.
        """
        if self.method in ("hidden-transfer", "flexdraft"):
            self.entered(config)  # It refuses bad taps before texts are made.
        last = config.layers - 1
        if self.method == "longspec":
            if last == 0:
                fix = "the head reads what enters the last layer: use a target of several"
                raise InvalidInput("layers", config.layers, fix)
            return (last - 1,)
        if self.method not in ("eagle3", "p-eagle", *EXITS):
            return (-1,)
        if self.method in EXITS:
            usual = 1 if self.method == "kangaroo" else max(config.layers // 6, 1)
            taps = self.taps or (min(usual, last - 1),)
            if len(taps) != 1 or not 0 <= taps[0] < last:
                fix = f"name one layer from 0 to {last - 1}, behind which it drafts"
                raise InvalidInput("--taps", list(taps), fix)
            if self.method == "m2r2":
                check_layers(config)
                return tuple(range(taps[0] + 1))
            return taps
        taps = self.taps or tuple(sorted({min(1, last), last // 2, last}))
        if not all(0 <= tap <= last for tap in taps) or len(set(taps)) < len(taps):
            raise InvalidInput("--taps", list(taps), f"name different layers from 0 to {last}")
        return taps


def common_tokens(texts: Sequence[HeadText], count: int, size: int) -> NDArray[np.int64]:
    """Return the ids of the ``count`` tokens that answers use most, int64, ascending.

    Among tokens of equal frequency, lower ids are chosen.

    Args:
        size: number of tokens of the vocabulary.
    """
    seen = np.zeros(size, np.int64)
    for text in texts:
        np.add.at(seen, text.tokens[text.start :], 1)
    return np.sort(np.lexsort((np.arange(size), -seen))[: min(count, size)])


def new_head(shape: HeadShape, target: Checkpoint, ids: NDArray[np.int64], seed: int) -> HeadFile:
    """Return a new head for ``target`` that drafts the tokens ``ids``.

    Attention and MLP are copies from the target's last layer but add nothing to the state at first,
    so the head repeats the target's prediction.

    Raises:
        InvalidInput: the model is a mixture of experts, or does not fit the shape.
    """
    config, weights = target.config, target.weights
    if config.mixture is not None:
        raise InvalidInput("model", config.name, "heads of mixtures of experts are not trained")
    random, d = np.random.default_rng(seed), config.hidden_size
    inner, taps = shape.width(config), shape.tapped(config)

    def normal(*sizes: int) -> Array:
        return (random.standard_normal(sizes) * 0.02).astype(np.float32)

    def ones() -> Array:
        return np.ones(d, np.float32)

    tensors: dict[str, NDArray[np.generic]] = {"d2t": ids - np.arange(len(ids))}
    if shape.method == "medusa":
        for level in range(shape.levels):
            for block in range(shape.layers):
                tensors[f"{level}.{block}.linear.weight"] = np.zeros((d, d), np.float32)
                tensors[f"{level}.{block}.linear.bias"] = np.zeros(d, np.float32)
        return HeadFile("medusa", tensors, (-1,), verifier=config.name)
    if shape.method == "hidden-transfer":  # At first pseudo states are copies.
        for level in range(shape.levels):
            tensors[f"transfer.{level}.weight"] = np.eye(d, dtype=np.float32)
        del tensors["d2t"]
        return HeadFile(shape.method, tensors, shape.entered(config), verifier=config.name)
    if shape.method == "flexdraft":
        return _masks(shape, target, tensors, normal)
    if shape.method == "ppd":  # Prompt tokens begin as tokens of answers.
        rows = weights["embed"].float32()[random.choice(ids, shape.levels)]
        return HeadFile("ppd", {"prompt_embeddings": rows}, (-1,), verifier=config.name)
    if shape.method == "m2r2":
        tensors |= stream_weights(config, len(taps), inner, normal)
        return HeadFile("m2r2", tensors, taps, verifier=config.name)
    if shape.method == "longspec":
        tensors |= longspec_weights(config, weights, inner, random)
        return HeadFile("longspec", tensors, taps, config.heads, config.kv_heads, config.head_dim,
                        config.norm_eps, config.rope, verifier=config.name)  # fmt: skip
    three = shape.method in ("eagle3", "p-eagle")
    # Kangaroo's first layer is a copy of the first target layer that it replaces.
    last = f"layers.{taps[0] + 1 if shape.method == 'kangaroo' else config.layers - 1}."
    own = {part: weights[f"{last}{part}"].float32() for part in ("q", "k", "v", "gate", "up")}
    for number in range(shape.layers):
        name = f"layers.{number}."
        for part in "qkv":
            rows = own[part]
            if number == 0 and three:
                rows = np.concatenate([normal(len(rows), d), rows], axis=1)
            tensors[f"{name}self_attn.{part}_proj.weight"] = rows
        width = config.heads * config.head_dim
        tensors[f"{name}self_attn.o_proj.weight"] = np.zeros((d, width), np.float32)
        if number or shape.method not in ("eagle1", "falcon", "dovetail"):
            before = ones() if number == 0 and three else weights[f"{last}attn_norm"].float32()
            tensors[f"{name}input_layernorm.weight"] = before
        if not inner:
            continue
        for part in ("gate", "up"):
            fits = inner == len(own[part])
            tensors[f"{name}mlp.{part}_proj.weight"] = own[part] if fits else normal(inner, d)
        tensors[f"{name}mlp.down_proj.weight"] = np.zeros((d, inner), np.float32)
        tensors[f"{name}post_attention_layernorm.weight"] = weights[f"{last}mlp_norm"].float32()
    if shape.method in CLOVERS:
        if d % config.heads:
            fix = f"its {config.heads} heads must divide its width for this method"
            raise InvalidInput("model", config.name, fix)
        second = shape.method == "clover-2"
        tensors |= clover_weights(second, d, shape.levels, weights["norm"].float32())
        shape = replace(shape, own_rows=False)
    elif shape.method == "chimera":
        rows = weights["embed" if config.tied_head else "head"].float32()[ids]
        tensors |= chimera_weights(shape.levels, rows)
        shape = replace(shape, own_rows=False)
    elif shape.method == "falcon":
        tensors |= falcon_weights(d, random)
    elif shape.method == "dovetail":
        tensors |= dovetail_weights(d)
    else:
        tensors |= _around(shape.method, taps, weights, last)
    if shape.own_rows:
        rows = weights["embed" if config.tied_head else "head"].float32()
        tensors["lm_head.weight"] = rows[ids]
    if shape.method == "p-eagle":
        tensors["mask_hidden"] = normal(1, 1, d * len(taps))
    kind = {"eagle1": "eagle"}.get(shape.method, shape.method)
    return HeadFile(
        kind, tensors, taps, config.heads, config.kv_heads, config.head_dim, config.norm_eps,
        Rope(dim=config.head_dim, theta=config.rope.theta), feeds_normed=shape.method == "mtp",
        verifier=config.name, mask_token=config.eos_tokens[0] if config.eos_tokens else 0,
        block_size=TOGETHER if shape.method == "falcon" else 0,
    )  # fmt: skip


def begun_with(fresh: HeadFile, before: HeadFile) -> HeadFile:
    """Return the new head ``fresh`` with the weights of the trained head ``before``.

    The vocabulary stays that of ``fresh``. If the heads train own rows of the LM head, the rows of
    tokens that both heads draft are taken over.

    Raises:
        InvalidInput: naming the first tensor that only one of the heads has, or whose sizes differ.
    """
    if before.kind != fresh.kind or before.gated:
        raise InvalidInput("--from", before.kind, f"give a head of the kind {fresh.kind}")
    if before.taps not in ((), fresh.taps):
        fix = f"it reads layers {[*before.taps]}, not {[*fresh.taps]}: give its own --taps"
        raise InvalidInput("--from", before.kind, fix)
    rows = "lm_head.weight"
    taken, ours = dict(before.tensors), dict(fresh.tensors)
    old, own = taken.pop(rows, None), ours.pop(rows, None)
    if own is not None and old is not None and "d2t" in taken:
        new, known = (each["d2t"] + np.arange(len(each["d2t"])) for each in (ours, taken))
        _, to, come = np.intersect1d(new, known, return_indices=True)
        own = own.copy()
        own[to] = old[come]
    for name in sorted({*ours, *taken} - {"d2t"}):
        sizes = [list(each[name].shape) if name in each else None for each in (taken, ours)]
        if sizes[0] != sizes[1]:
            fix = f"its {name} is {sizes[0]}, not {sizes[1]}: give its own sizes"
            raise InvalidInput("--from", before.kind, fix)
    tensors = {**taken, "d2t": ours["d2t"]} if "d2t" in ours else taken
    return replace(fresh, tensors=tensors if own is None else {**tensors, rows: own})


def _around(method: str, taps: Sequence[int], weights: Weights, last: str) -> dict[str, Array]:
    """Return the initial weights of the tensors before and after the layers.

    They copy the target's last state.
    """
    norm = weights["norm"].float32()
    ones, copied = np.ones_like(norm), np.eye(len(norm), dtype=np.float32)
    both = np.concatenate([np.zeros_like(copied), copied], axis=1)
    if method == "eagle1":
        return {"fc.weight": both}
    if method == "kangaroo":
        return {"norm.weight": norm}
    if method == "mtp":
        return {"norm.weight": norm, "eh_proj.weight": both, "enorm.weight": ones,
                "hnorm.weight": ones}  # fmt: skip
    parts = [copied * (tap == max(taps)) for tap in taps]
    return {"norm.weight": norm, "fc.weight": np.concatenate(parts, axis=1),
            "layers.0.hidden_norm.weight": weights[f"{last}attn_norm"].float32()}  # fmt: skip


def _masks(
    shape: HeadShape, target: Checkpoint, tensors: dict[str, NDArray[np.generic]],
    normal: Callable[..., Array],
) -> HeadFile:  # fmt: skip
    """Return a new head of FlexDraft.

    The attention is a copy of the target's, and the calibration adds nothing at first.
    """
    config, weights = target.config, target.weights
    d, rank, taps = config.hidden_size, shape.width(config), shape.entered(config)
    guessed = len(tensors["d2t"])
    tensors["mask_embedding"] = normal(d)
    for number, tap in enumerate(taps):
        for ours, theirs in own_attention(config):
            rows = weights[f"layers.{tap + 1}.{ours}"].float32()
            tensors[f"layers.{number}.self_attn.{theirs}"] = rows
    tensors["anchor_bias_mlp.0.weight"] = normal(rank, 2 * d)
    tensors["anchor_bias_mlp.0.bias"] = np.zeros(rank, np.float32)
    tensors["anchor_bias_mlp.2.weight"] = np.zeros((guessed, rank), np.float32)
    tensors["anchor_bias_mlp.2.bias"] = np.zeros(guessed, np.float32)
    return HeadFile(
        "flexdraft", tensors, taps, config.heads, config.kv_heads, config.head_dim,
        config.norm_eps, Rope(dim=config.head_dim, theta=config.rope.theta), verifier=config.name,
        block_size=shape.levels + 1,
    )  # fmt: skip
