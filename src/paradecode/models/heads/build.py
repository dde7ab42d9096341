"""Build the networks that backends run from a stored head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.core.head import Block, Head, Masks, Network
from paradecode.models.config import ModelConfig
from paradecode.models.heads.chimera import chimera
from paradecode.models.heads.clover import clover
from paradecode.models.heads.falcon import falcon
from paradecode.models.heads.flexdraft import flexdraft
from paradecode.models.heads.layers import layers
from paradecode.models.heads.layouts import HeadFile
from paradecode.models.heads.longspec import longspec
from paradecode.models.heads.m2r2 import m2r2
from paradecode.models.heads.networks import HeadTensors, NetworkBuilder
from paradecode.models.heads.parts import HeadParts, Target


def build_head(file: HeadFile, config: ModelConfig, target: Target, vocabulary: int = 0) -> Head:
    """Build a head for a target.

    Args:
        config, target: sizes and tensors of the target; a head may use its embedding, final norm
            and LM head.
        vocabulary: number of the head's tokens that it may propose, those with the lowest ids
            (which are the most frequent in a BPE vocabulary); 0 for all. Fewer are faster to rank
            and are less often right (arXiv 2603.05210).

    Raises:
        InvalidModel: its tensors do not fit together or do not fit the target, or some are unknown:
            a head of which some tensors are ignored guesses wrong.
    """
    parts = HeadParts(file, config, target, vocabulary, HeadTensors(file))
    try:
        head = KINDS[file.kind](parts)
    except InvalidModel:
        raise
    except InvalidInput as error:
        raise InvalidModel("head", file.kind, f"its tensors do not fit ({error})") from None
    if parts.t.unread:
        raise InvalidModel(min(parts.t.unread), "tensor", f"no {file.kind} head has it")
    return head


def _eagle(parts: HeadParts) -> Head:
    file, t, width = parts.file, parts.t, parts.config.hidden_size
    first = NetworkBuilder(state=width, token=0)
    embedded = parts.embedded(first)
    if file.kind == "dovetail":
        into = _gated(parts, first, embedded)
    else:
        both = first.add("join", embedded, "state")
        into = first.linear(both, t("fc.weight", width, 2 * width), t.maybe("fc.bias", width))
    out, ids = parts.out(width, normed=False)
    blocks = layers(file, t, first, into, into, width)
    return Head(file.kind, (-1,), width, parts.enter_last(), blocks, (out,), to_target=ids)


def _gated(parts: HeadParts, first: NetworkBuilder, embedded: str) -> str:
    """Add Dovetail's fusion (arXiv 2412.18934): for each number a gate between state and token.

    Its matrices are stored as [inputs, outputs].
    """
    t, width = parts.t, parts.config.hidden_size
    token = first.norm(embedded, t("input_layernorm.weight", width), parts.file.epsilon)
    state = first.linear("state", t("W_1", width, width).T)
    token = first.add("silu", first.linear(token, t("W_2", width, width).T))
    gate = first.linear(first.add("join", state, token), t("W_z", 2 * width, width).T)
    other = first.add("scale", gate, tensor=-np.ones(width))  # 1 - sigmoid(x) is sigmoid(-x).
    state = first.add("multiply", first.add("sigmoid", gate), state)
    return first.add("add", state, first.add("multiply", first.add("sigmoid", other), token))


def _eagle3(parts: HeadParts) -> Head:
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


def _mtp(parts: HeadParts) -> Head:
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


def _medusa(parts: HeadParts) -> Head:
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


def _kangaroo(parts: HeadParts) -> Head:
    file, t, width = parts.file, parts.t, parts.config.hidden_size
    if not 0 <= file.taps[0] < parts.config.layers - 1:
        fix = f"leave some of the target's {parts.config.layers} layers behind the exit"
        raise InvalidModel("exit_layer", file.taps[0] + 1, fix)
    enter, first = NetworkBuilder(features=width), NetworkBuilder(state=width, token=0)
    enter.same("features", width)
    out, ids = parts.out(width, normed=True)
    blocks = layers(file, t, first, "state", "state", width)
    return Head("kangaroo", file.taps, width, enter.network(), blocks, (out,), to_target=ids)


def _ppd(parts: HeadParts) -> Head:
    width = parts.config.hidden_size
    prompts = np.ascontiguousarray(parts.t("prompt_embeddings", -1, width), np.float32)
    if not 1 <= len(prompts) <= 16:
        raise InvalidModel("prompt_embeddings", prompts.shape, "give 1 to 16 rows")
    enter = NetworkBuilder(features=width)
    enter.same("features", width)
    return Head("ppd", (), width, enter.network(), (), (), prompts=prompts)


def _hidden_transfer(parts: HeadParts) -> Head:
    taps, width = parts.file.taps, parts.config.hidden_size
    layers = [tap + 1 for tap in taps]
    if layers != sorted(layers) or not 1 <= layers[0] <= layers[-1] < parts.config.layers:
        fix = f"name layers from 1 to {parts.config.layers - 1} of the target, none before the last"
        raise InvalidModel("transfer_layers", layers, fix)
    transfers = []
    for level in range(len(taps)):
        steps = NetworkBuilder(state=width)
        steps.linear("state", parts.t(f"transfer.{level}.weight", width, width))
        transfers.append(steps.network())
    enter = NetworkBuilder(features=width)
    enter.same("features", width)
    return Head("hidden-transfer", taps, width, enter.network(), (), (), transfers=tuple(transfers))


def _dflash(parts: HeadParts) -> Head:
    file, t = parts.file, parts.t
    taps, enter = parts.enter_taps()
    width = len(t("fc.weight", -1, -1))
    enter.norm(enter.ops[-1].out, t("hidden_norm.weight", width), file.epsilon)
    first = NetworkBuilder(token=0)
    into = parts.embedded(first)
    out, ids = parts.out(width, normed=True)
    blocks = _seeing(file, layers(file, t, first, into, into, width, text=True))
    bias = None
    if file.kind == "dspark":
        t.unread -= {"confidence_head.proj.weight", "confidence_head.proj.bias"}  # Calibrated here.
        if "markov_head.markov_w1.weight" in t:
            bias = _bias(parts, width, out.widths[out.steps[-1].out])
    if file.kind == "dflash2":
        bias = _selector(parts, width, out.widths[out.steps[-1].out])
    masks = Masks(file.block_size, file.mask_token, file.first_guess, bias, top=file.candidates)
    return Head(file.kind, taps, width, enter.network(), blocks, (out,), to_target=ids, masks=masks)


def _seeing(file: HeadFile, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    """Return the blocks of a head on masks with the windows that its file gives them."""
    if not file.sights:
        return blocks
    if len(file.sights) != len(blocks):
        raise InvalidModel("layer_types", len(file.sights), f"the head has {len(blocks)} layers")
    return tuple(
        replace(block, window=sight.window, trails=sight.trails, causal=sight.causal)
        for block, sight in zip(blocks, file.sights)
    )


def _bias(parts: HeadParts, width: int, guessed: int) -> Network:
    """Build DSpark's Markov head: what the token before the guess adds to the logits."""
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


def _selector(parts: HeadParts, width: int, guessed: int) -> Network:
    """Build DFlash2's selector: what the token before the guess and the row's state add."""
    t, name, known = parts.t, "candidate_selector", parts.config.vocab_size
    steps = NetworkBuilder(token=0, state=width)
    rows = t(f"{name}.predecessor_codebook.weight", -1, -1)
    following = t(f"{name}.successor_codebook.weight", len(rows), rows.shape[1])
    if not known <= len(rows) or parts.file.candidates > len(rows):
        raise InvalidModel(f"{name}.predecessor_codebook", rows.shape, f"the target has {known}")
    if "d2t" in t:
        raise InvalidModel("d2t", None, "a DFlash2 head guesses all tokens of its target")
    weight = t(f"{name}.hidden_projection.weight", rows.shape[1], width)
    own = steps.linear(parts.norm(steps, "state", width), weight)
    both = steps.add("multiply", steps.add("lookup", "token", tensor=rows), own)
    steps.linear(both, following[:guessed])
    return steps.network()


KINDS: dict[str, Callable[[HeadParts], Head]] = {
    "eagle": _eagle, "eagle3": _eagle3, "p-eagle": _eagle3, "mtp": _mtp, "medusa": _medusa,
    "dflash": _dflash, "dspark": _dflash, "dflash2": _dflash, "clover": clover, "clover-2": clover,
    "kangaroo": _kangaroo, "falcon": falcon, "dovetail": _eagle,
    "chimera": chimera, "ppd": _ppd, "hidden-transfer": _hidden_transfer,
    "flexdraft": flexdraft, "longspec": longspec, "m2r2": m2r2,
}  # fmt: skip
