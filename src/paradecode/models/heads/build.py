"""From a stored head to the networks that backends run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidModel
from paradecode.core.head import Block, Head
from paradecode.core.network import Array, Network, Op
from paradecode.models.config import ModelConfig
from paradecode.models.heads.layouts import HeadFile, d2t_of

Target = Callable[[str], Array]
"""The target's float32 tensors, by the names of ``ModelConfig.tensors``."""


class _NetworkBuilder:
    """A network in the making; methods add steps and return the names of their values."""

    def __init__(self, **inputs: int) -> None:
        self.inputs, self.ops, self.tensors = inputs, list[Op](), dict[str, Array]()

    def add(
        self, kind: str, *values: str, tensor: NDArray[Any] | None = None, number: float = 0.0
    ) -> str:
        out = f"v{len(self.ops)}"
        if tensor is not None:
            self.tensors[out] = np.ascontiguousarray(tensor, np.float32)
        self.ops.append(Op(out, kind, values, () if tensor is None else (out,), 0, number))
        return out

    def linear(self, x: str, weight: NDArray[Any], bias: NDArray[Any] | None = None) -> str:
        """``weight`` is [outputs, inputs]."""
        out = self.add("linear", x, tensor=weight.T)
        return out if bias is None else self.add("shift", out, tensor=bias)

    def norm(self, x: str, gain: NDArray[Any], epsilon: float) -> str:
        unit = self.add("divide", x, self.add("rms", x, number=epsilon))
        return self.add("scale", unit, tensor=gain)

    def same(self, x: str, width: int) -> str:
        """A step that changes nothing: a network's result is a step's."""
        return self.add("scale", x, tensor=np.ones(width))

    def network(self) -> Network:
        return Network(self.inputs, tuple(self.ops), self.tensors, rounded=True)


def build_head(file: HeadFile, config: ModelConfig, target: Target, vocabulary: int = 0) -> Head:
    """The networks of a head for a target.

    Args:
        config, target: sizes and tensors of the target; a head may use its embedding, final norm
            and LM head.
        vocabulary: how many of the head's tokens it may guess, those with the lowest ids (which
            are the commonest in a vocabulary made by merges); 0 for all. Fewer cost less to rank
            and can be right less often (arXiv 2603.05210).

    Raises:
        InvalidModel: if its tensors do not fit together, or not to the target.
    """
    try:
        return _KINDS[file.kind](file, config, target, vocabulary)
    except KeyError as error:
        raise InvalidModel(str(error), None, "the head lacks this tensor") from None
    except (ValueError, IndexError) as error:
        raise InvalidModel("head", file.kind, f"its tensors do not fit ({error})") from None


def _eagle(file: HeadFile, config: ModelConfig, target: Target, vocabulary: int) -> Head:
    t, width = file.tensors, len(file.tensors["fc.weight"])
    enter = _NetworkBuilder(features=config.hidden_size)
    enter.norm("features", _final_norm(file, target), config.norm_eps)
    first = _NetworkBuilder(state=width, token=0)
    embedded = first.add("lookup", "token", tensor=_embedding(file, target))
    both = first.add("join", embedded, "state")
    into = first.linear(both, t["fc.weight"], t.get("fc.bias"))
    out, ids = _head_of(file, config, target, vocabulary, width, None)
    return Head("eagle", (-1,), width, enter.network(), _blocks(file, first, into, width), (out,),
                to_target=ids)  # fmt: skip


def _eagle3(file: HeadFile, config: ModelConfig, target: Target, vocabulary: int) -> Head:
    t, width = file.tensors, len(file.tensors["fc.weight"])
    taps = file.taps or (1, config.layers // 2 - 1, config.layers - 4)
    if min(taps) < 0 or max(taps) >= config.layers:
        raise InvalidModel("eagle_aux_hidden_state_layer_ids", taps, "the target lacks these")
    enter = _NetworkBuilder(features=config.hidden_size * len(taps))
    features = "features"
    if "input_norm.weight" in t:
        features = enter.norm(features, t["input_norm.weight"], file.epsilon)
    if "fc_norm.0.weight" in t:
        raise InvalidModel("fc_norm", "set", "norms of each layer's features are not supported")
    enter.linear(features, t["fc.weight"])
    first = _NetworkBuilder(state=width, token=0)
    embedded = first.add("lookup", "token", tensor=_embedding(file, target))
    token = first.norm(embedded, t["layers.0.input_layernorm.weight"], file.epsilon)
    state = first.norm("state", t["layers.0.hidden_norm.weight"], file.epsilon)
    both = first.add("join", token, state)
    rest = state if file.normed_residual else "state"
    blocks = _blocks(file, first, both, width, rest)
    out, ids = _head_of(file, config, target, vocabulary, width, t["norm.weight"])
    mask = None
    if file.kind == "p-eagle":
        mask = np.ascontiguousarray(t["mask_hidden"], np.float32).reshape(1, -1), file.mask_token
        if mask[0].shape[1] != enter.inputs["features"]:
            raise InvalidModel("mask_hidden", mask[0].shape, "it must be as wide as the features")
    back = _normed(width, t["norm.weight"], file.epsilon) if file.feeds_normed else None
    return Head(file.kind, taps, width, enter.network(), blocks, (out,), back, ids, mask)


def _mtp(file: HeadFile, config: ModelConfig, target: Target, vocabulary: int) -> Head:
    t, width = file.tensors, len(file.tensors["eh_proj.weight"])
    enter = _NetworkBuilder(features=config.hidden_size)
    if file.normed_features:
        enter.norm("features", _final_norm(file, target), config.norm_eps)
    else:
        enter.same("features", config.hidden_size)
    first = _NetworkBuilder(state=width, token=0)
    embedded = first.add("lookup", "token", tensor=_embedding(file, target))
    token = first.norm(embedded, t["enorm.weight"], file.epsilon)
    state = first.norm("state", t["hnorm.weight"], file.epsilon)
    into = first.linear(first.add("join", token, state), t["eh_proj.weight"])
    blocks = _blocks(file, first, into, width)
    out, ids = _head_of(file, config, target, vocabulary, width, t["norm.weight"])
    back = _normed(width, t["norm.weight"], file.epsilon) if file.feeds_normed else None
    return Head("mtp", (-1,), width, enter.network(), blocks, (out,), back, ids)


def _medusa(file: HeadFile, config: ModelConfig, target: Target, vocabulary: int) -> Head:
    t, width = file.tensors, config.hidden_size
    enter = _NetworkBuilder(features=width)
    enter.norm("features", _final_norm(file, target), config.norm_eps)
    outs: list[Network] = []
    kept = None
    while f"{len(outs)}.0.linear.weight" in t:
        steps, x, number, depth = _NetworkBuilder(state=width), "state", len(outs), 0
        while f"{number}.{depth}.linear.weight" in t:
            name = f"{number}.{depth}.linear"
            inner = steps.linear(x, t[f"{name}.weight"], t.get(f"{name}.bias"))
            x, depth = steps.add("add", x, steps.add("silu", inner)), depth + 1
        own = t.get(f"{number}.{depth}.weight")
        rows, kept = _kept(file, _lm_head(file, config, target) if own is None else own,
                           vocabulary)  # fmt: skip
        steps.linear(x, rows)
        outs.append(steps.network())
    return Head("medusa", (-1,), width, enter.network(), (), tuple(outs), to_target=kept)


_KINDS = {"eagle": _eagle, "eagle3": _eagle3, "p-eagle": _eagle3, "mtp": _mtp, "medusa": _medusa}


def _blocks(
    file: HeadFile, first: _NetworkBuilder, into: str, width: int, rest: str = ""
) -> tuple[Block, ...]:
    """Llama layers; what enters the attention of the first is made by ``first``.

    Args:
        rest: what the first goes on with, if that is not what enters it.
    """
    blocks: list[Block] = []
    t = file.tensors
    while f"layers.{len(blocks)}.self_attn.q_proj.weight" in t:
        name = f"layers.{len(blocks)}."
        steps, goes_on = (
            (first, rest or into) if not blocks else (_NetworkBuilder(state=width), "state")
        )
        x = into if not blocks else "state"
        # EAGLE-1 has no norm before its first attention; EAGLE-3 has normed its two halves.
        if not rest or blocks:
            gain = t.get(f"{name}input_layernorm.weight")
            x = x if gain is None else steps.norm(x, gain, file.epsilon)
        parts = [
            steps.linear(x, t[f"{name}self_attn.{p}_proj.weight"],
                         t.get(f"{name}self_attn.{p}_proj.bias"))
            for p in "qkv"
        ]  # fmt: skip
        steps.add("join", *parts, goes_on)
        after = _NetworkBuilder(mixed=file.heads * file.head_dim, rest=width)
        o = after.linear("mixed", t[f"{name}self_attn.o_proj.weight"],
                         t.get(f"{name}self_attn.o_proj.bias"))  # fmt: skip
        state = after.add("add", "rest", o)
        n = after.norm(state, t[f"{name}post_attention_layernorm.weight"], file.epsilon)
        gate = after.add("silu", after.linear(n, t[f"{name}mlp.gate_proj.weight"]))
        up = after.linear(n, t[f"{name}mlp.up_proj.weight"])
        down = after.linear(after.add("multiply", gate, up), t[f"{name}mlp.down_proj.weight"])
        after.add("add", state, down)
        blocks.append(
            Block(
                steps.network(), after.network(), file.heads, file.kv_heads, file.head_dim,
                file.rope.inverse_frequencies(), file.epsilon,
                t.get(f"{name}self_attn.q_norm.weight"), t.get(f"{name}self_attn.k_norm.weight"),
            )
        )  # fmt: skip
    return tuple(blocks)


def _head_of(
    file: HeadFile, config: ModelConfig, target: Target, vocabulary: int, width: int,
    gain: NDArray[Any] | None,
) -> tuple[Network, NDArray[np.int32] | None]:  # fmt: skip
    """State -> logits, behind a norm if there is one, and the target's ids of the head's tokens."""
    own = file.tensors.get("lm_head.weight")
    rows = _lm_head(file, config, target) if own is None else own
    rows, ids = _kept(file, rows, vocabulary)
    if ids is not None and ids[-1] >= config.vocab_size:
        raise InvalidModel("d2t", int(ids[-1]), f"the target has {config.vocab_size} tokens")
    steps = _NetworkBuilder(state=width)
    x = "state" if gain is None else steps.norm("state", gain, file.epsilon)
    steps.linear(x, rows)
    return steps.network(), ids


def _kept(
    file: HeadFile, rows: NDArray[Any], vocabulary: int
) -> tuple[NDArray[Any], NDArray[np.int32] | None]:
    ids = d2t_of(file.tensors)
    if ids is not None and len(ids) != len(rows):
        raise InvalidModel("d2t", len(ids), f"the LM head has {len(rows)} rows")
    if 0 < vocabulary < len(rows):
        kept = np.arange(vocabulary, dtype=np.int32)
        return rows[:vocabulary], kept if ids is None else ids[:vocabulary]
    return rows, ids


def _normed(width: int, gain: NDArray[Any], epsilon: float) -> Network:
    steps = _NetworkBuilder(state=width)
    steps.norm("state", gain, epsilon)
    return steps.network()


def _embedding(file: HeadFile, target: Target) -> NDArray[Any]:
    own = file.tensors.get("embed_tokens.weight")
    return target("embed") if own is None else own


def _final_norm(file: HeadFile, target: Target) -> NDArray[Any]:
    own = file.tensors.get("verifier_norm.weight")
    return target("norm") if own is None else own


def _lm_head(file: HeadFile, config: ModelConfig, target: Target) -> NDArray[Any]:
    own = file.tensors.get("verifier_lm_head.weight")
    return target("embed" if config.tied_head else "head") if own is None else own
