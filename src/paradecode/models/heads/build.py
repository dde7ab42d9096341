"""From a stored head to the networks that backends run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.core.head import Head, Masks
from paradecode.core.network import Array, Network
from paradecode.models.config import ModelConfig
from paradecode.models.heads.layers import layers
from paradecode.models.heads.layouts import HeadFile, d2t_of
from paradecode.models.heads.networks import HeadTensors, NetworkBuilder

Target = Callable[[str], Array]
"""The target's float32 tensors, by the names of ``ModelConfig.tensors``."""


def build_head(file: HeadFile, config: ModelConfig, target: Target, vocabulary: int = 0) -> Head:
    """The networks of a head for a target.

    Args:
        config, target: sizes and tensors of the target; a head may use its embedding, final norm
            and LM head.
        vocabulary: how many of the head's tokens it may guess, those with the lowest ids (which
            are the commonest in a vocabulary made by merges); 0 for all. Fewer cost less to rank
            and can be right less often (arXiv 2603.05210).

    Raises:
        InvalidModel: if its tensors do not fit together or not to the target, or if it has tensors
            that are not known: a head that is read in part guesses wrong.
    """
    parts = _Parts(file, config, target, vocabulary, HeadTensors(file))
    try:
        head = _KINDS[file.kind](parts)
    except InvalidModel:
        raise
    except InvalidInput as error:
        raise InvalidModel("head", file.kind, f"its tensors do not fit ({error})") from None
    if parts.t.unread:
        raise InvalidModel(min(parts.t.unread), "tensor", f"no {file.kind} head has it")
    return head


@dataclass(frozen=True)
class _Parts:
    """What a head is built from, and what several kinds of heads have."""

    file: HeadFile
    config: ModelConfig
    target: Target
    vocabulary: int
    t: HeadTensors

    def enter_last(self, normed: bool = True) -> Network:
        """Features -> states: the target's last layer, behind its final norm."""
        width = self.config.hidden_size
        steps = NetworkBuilder(features=width)
        if normed:
            name = "verifier_norm.weight"
            gain = self.t(name, width) if name in self.t else self.target("norm")
            steps.norm("features", gain, self.config.norm_eps)
        else:
            steps.same("features", width)
        return steps.network()

    def enter_taps(self) -> tuple[tuple[int, ...], NetworkBuilder]:
        """Which layers are tapped; features -> ``fc`` of them."""
        file, t, hidden = self.file, self.t, self.config.hidden_size
        taps = file.taps or (1, self.config.layers // 2 - 1, self.config.layers - 4)
        if min(taps) < 0 or max(taps) >= self.config.layers:
            raise InvalidModel("aux_hidden_state_layer_ids", taps, "the target lacks these layers")
        steps = NetworkBuilder(features=hidden * len(taps))
        features = "features"
        if "input_norm.weight" in t:
            gain = t("input_norm.weight", hidden * len(taps))
            features = steps.norm(features, gain, file.epsilon)
        if "fc_norm.0.weight" in t:
            gains = [t(f"fc_norm.{tap}.weight", hidden) for tap in range(len(taps))]
            features = steps.norm_each(features, gains, file.epsilon)
        weight = t("fc.weight", -1, hidden * len(taps))
        steps.linear(features, weight, t.maybe("fc.bias", len(weight)))
        return taps, steps

    def embedded(self, steps: NetworkBuilder) -> str:
        name = "embed_tokens.weight"
        rows = self.t(name, -1, -1) if name in self.t else self.target("embed")
        if len(rows) < max(self.config.vocab_size, self.file.mask_token + 1):
            fix = f"the target has {self.config.vocab_size} tokens"
            raise InvalidModel(name, rows.shape, f"{fix}, and masks token {self.file.mask_token}")
        return steps.add("lookup", "token", tensor=rows)

    def out(self, width: int, normed: bool) -> tuple[Network, NDArray[np.int32] | None]:
        """State -> logits, and the target's ids of the head's tokens."""
        steps = NetworkBuilder(state=width)
        x = self.norm(steps, "state", width) if normed else "state"
        rows, ids = self.kept("lm_head.weight", width)
        steps.linear(x, rows)
        return steps.network(), ids

    def norm(self, steps: NetworkBuilder, x: str, width: int) -> str:
        return steps.norm(x, self.t.gain("norm.weight", width), self.file.epsilon)

    def back(self, width: int) -> Network | None:
        """What a draft's next row is given in place of features, if it is not the state."""
        if not self.file.feeds_normed:
            return None
        steps = NetworkBuilder(state=width)
        self.norm(steps, "state", width)
        return steps.network()

    def kept(self, name: str, width: int) -> tuple[NDArray[Any], NDArray[np.int32] | None]:
        """Rows of an LM head, those that may be guessed, and their ids if they are not these."""
        if name in self.t:
            rows = self.t(name, -1, width)
        elif "verifier_lm_head.weight" in self.t:
            rows = self.t("verifier_lm_head.weight", -1, width)
        else:
            rows = self.target("embed" if self.config.tied_head else "head")
        ids = d2t_of(self.t("d2t", -1)) if "d2t" in self.t else None
        known = self.config.vocab_size
        if name not in self.t:
            if ids is None:
                rows = rows[:known]
            elif ids[-1] < known <= len(rows):  # The target's own.
                rows = rows[ids]
        if ids is not None and len(ids) != len(rows):
            raise InvalidModel("d2t", len(ids), f"the LM head has {len(rows)} rows")
        if (len(rows) - 1 if ids is None else ids[-1]) >= known:
            field = (name, len(rows)) if ids is None else ("d2t", int(ids[-1]))
            raise InvalidModel(*field, f"the target has {known} tokens")
        if 0 < self.vocabulary < len(rows):
            lowest = np.arange(self.vocabulary, dtype=np.int32)
            return rows[: self.vocabulary], lowest if ids is None else ids[: self.vocabulary]
        return rows, ids


def _eagle(parts: _Parts) -> Head:
    t, width = parts.t, parts.config.hidden_size
    first = NetworkBuilder(state=width, token=0)
    both = first.add("join", parts.embedded(first), "state")
    into = first.linear(both, t("fc.weight", width, 2 * width), t.maybe("fc.bias", width))
    out, ids = parts.out(width, normed=False)
    blocks = layers(parts.file, t, first, into, into, width)
    return Head("eagle", (-1,), width, parts.enter_last(), blocks, (out,), to_target=ids)


def _eagle3(parts: _Parts) -> Head:
    file, t = parts.file, parts.t
    taps, enter = parts.enter_taps()
    width = len(t("fc.weight", -1, -1))
    first = NetworkBuilder(state=width, token=0)
    embedded = parts.embedded(first)
    token = first.norm(embedded, t("layers.0.input_layernorm.weight", width), file.epsilon)
    state = first.norm("state", t("layers.0.hidden_norm.weight", width), file.epsilon)
    both, rest = first.add("join", token, state), state if file.normed_residual else "state"
    out, ids = parts.out(width, normed=True)
    blocks = layers(file, t, first, both, rest, width, normed=True)
    mask = None
    if file.kind == "p-eagle":
        hidden = t("mask_hidden", 1, 1, enter.inputs["features"])
        mask = np.ascontiguousarray(hidden, np.float32).reshape(1, -1), file.mask_token
    return Head(file.kind, taps, width, enter.network(), blocks, (out,), parts.back(width), ids,
                mask)  # fmt: skip


def _mtp(parts: _Parts) -> Head:
    file, t, width = parts.file, parts.t, parts.config.hidden_size
    first = NetworkBuilder(state=width, token=0)
    token = first.norm(parts.embedded(first), t.gain("enorm.weight", width), file.epsilon)
    state = first.norm("state", t.gain("hnorm.weight", width), file.epsilon)
    both = first.add("join", *((state, token) if file.hidden_first else (token, state)))
    into = first.linear(both, t("eh_proj.weight", width, 2 * width))
    out, ids = parts.out(width, normed=True)
    blocks = layers(file, t, first, into, into, width)
    return Head("mtp", (-1,), width, parts.enter_last(file.normed_features), blocks, (out,),
                parts.back(width), ids)  # fmt: skip


def _medusa(parts: _Parts) -> Head:
    t, width = parts.t, parts.config.hidden_size
    outs: list[Network] = []
    ids = None
    while f"{len(outs)}.0.linear.weight" in t:
        steps, x, number, depth = NetworkBuilder(state=width), "state", len(outs), 0
        while f"{number}.{depth}.linear.weight" in t:
            name = f"{number}.{depth}.linear"
            inner = steps.linear(x, t(f"{name}.weight", width, width),
                                 t.maybe(f"{name}.bias", width))  # fmt: skip
            x, depth = steps.add("add", x, steps.add("silu", inner)), depth + 1
        rows, ids = parts.kept(f"{number}.{depth}.weight", width)
        steps.linear(x, rows)
        outs.append(steps.network())
    return Head("medusa", (-1,), width, parts.enter_last(), (), tuple(outs), to_target=ids)


def _dflash(parts: _Parts) -> Head:
    file, t = parts.file, parts.t
    taps, enter = parts.enter_taps()
    width = len(t("fc.weight", -1, -1))
    enter.norm(enter.ops[-1].out, t("hidden_norm.weight", width), file.epsilon)
    first = NetworkBuilder(token=0)
    into = parts.embedded(first)
    out, ids = parts.out(width, normed=True)
    blocks = layers(file, t, first, into, into, width, text=True)
    bias = None
    if file.kind == "dspark":
        t.unread -= {"confidence_head.proj.weight", "confidence_head.proj.bias"}  # Calibrated here.
        if "markov_head.markov_w1.weight" in t:
            bias = _bias(parts, width, out.widths[out.steps[-1].out])
    masks = Masks(file.block_size, file.mask_token, file.first_guess, bias)
    return Head(file.kind, taps, width, enter.network(), blocks, (out,), to_target=ids, masks=masks)


def _bias(parts: _Parts, width: int, guessed: int) -> Network:
    """DSpark's Markov head: what the token before adds to the logits."""
    t = parts.t
    steps = NetworkBuilder(token=0, state=width)
    rows = t("markov_head.markov_w1.weight", -1, -1)
    if len(rows) < parts.config.vocab_size:
        fix = f"the target has {parts.config.vocab_size} tokens"
        raise InvalidModel("markov_head.markov_w1.weight", rows.shape, fix)
    rank, before = rows.shape[1], steps.add("lookup", "token", tensor=rows)
    name = "markov_head.gate_proj"
    if f"{name}.weight" in t:
        state = parts.norm(steps, "state", width)
        both = steps.add("join", state, before)
        gate = steps.linear(both, t(f"{name}.weight", rank, width + rank), t(f"{name}.bias", rank))
        before = steps.add("multiply", before, steps.add("sigmoid", gate))
    weight = t("markov_head.markov_w2.weight", -1, rank)[: parts.vocabulary or None]
    if len(weight) != guessed:
        raise InvalidModel("markov_head.markov_w2.weight", len(weight), f"expected {guessed} rows")
    steps.linear(before, weight)
    return steps.network()


_KINDS: dict[str, Callable[[_Parts], Head]] = {
    "eagle": _eagle, "eagle3": _eagle3, "p-eagle": _eagle3, "mtp": _mtp, "medusa": _medusa,
    "dflash": _dflash, "dspark": _dflash,
}  # fmt: skip
