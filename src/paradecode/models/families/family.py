"""Base class of model families, which read the files of one family from folders and from GGUF.

A family names its facts as transformers' config.json does; those of a GGUF file are translated to
the same names, so that each family has one function from facts to layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidModel
from paradecode.models.config import ModelConfig
from paradecode.models.metadata import Metadata
from paradecode.models.mixture import MOST_LAYERS
from paradecode.models.parts import NAMES, Attention, Feed, Layer, Shapes
from paradecode.models.recurrence import Recurrence
from paradecode.models.rope import Rope
from paradecode.models.weights import Kind, Tensor

Fields = dict[str, Any]
"""Fields of a :class:`ModelConfig`."""
LLAMA_NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "mlp_norm",
    "self_attn.q_proj": "q", "self_attn.k_proj": "k", "self_attn.v_proj": "v",
    "self_attn.o_proj": "o", "self_attn.q_norm": "q_norm", "self_attn.k_norm": "k_norm",
    "mlp.gate_proj": "gate", "mlp.up_proj": "up", "mlp.down_proj": "down",
}  # fmt: skip
"""A module of one of Llama's layers in a folder -> our name."""
LLAMA_OUTSIDE = {"model.embed_tokens": "embed", "model.norm": "norm", "lm_head": "head"}
GGUF_NAMES = {
    "attn_norm": "attn_norm", "attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o",
    "attn_qkv": "q+k+v", "attn_q_norm": "q_norm", "attn_k_norm": "k_norm", "ffn_norm": "mlp_norm",
    "ffn_gate": "gate", "ffn_up": "up", "ffn_down": "down", "post_attention_norm": "after_attn",
    "post_ffw_norm": "after_mlp", "attn_sinks": "sinks", "ffn_gate_inp": "router",
    "ffn_gate_exps": "experts.gate", "ffn_up_exps": "experts.up", "ffn_down_exps": "experts.down",
}  # fmt: skip
"""A tensor of a layer in GGUF -> our name; ``a+b`` holds the rows of a, then those of b."""
GGUF_OUTSIDE = {
    "token_embd": "embed", "output_norm": "norm", "output": "head", "position_embd": "positions",
    "token_embd_norm": "embed_norm", "per_layer_token_embd": "token_embed",
    "per_layer_model_proj": "token_project", "per_layer_proj_norm": "token_norm",
    "self_cond_pre_norm": "guess.norm", "self_cond_gate": "guess.gate",
    "self_cond_up": "guess.up", "self_cond_down": "guess.down",
}  # fmt: skip


_TEXT = re.compile(r"^(?:model\.)?language_model\.(?:model\.)?")
"""Matches the prefix of the names of a network that is the text part of another one."""
_EXPERT = re.compile(r"experts\.(\d{1,4})\.")
_NUMBER = re.compile(r"\.(\d{1,4})\.")
_UNSEEN = re.compile(
    r"^(?:model\.)?(?:encoder\.)?"
    r"(?:vision|visual|vit_|audio|embed_vision|embed_audio|multi_modal|mtp\.)"
)
"""Beginnings of the names of weights that read pictures and sounds, or guess a second token."""


@dataclass(frozen=True)
class Family:
    """One family.

    Attributes:
        name: the architecture in messages.
        fields: returns the fields of a ``ModelConfig`` from a file's facts.
        classes: transformers' classes, without ``ForCausalLM``.
        model_types: ``model_type`` of these classes.
        gguf: ``general.architecture`` of GGUF files.
        defaults: keys that config.json may leave out, with the defaults of the class.
        nullable: keys whose null has a meaning of its own.
        names, outside: module in a layer or outside of the layers -> our name. ``mixer_norm`` is
            the norm of the layer's first part, ``a+b`` is a joined tensor, ``q/k/v`` has the rows
            of each key head together (``q/attn_gate``: of each query head), and ``q|v|k`` is
            CodeGen's order; ``a?b`` is the first of them that the layer has; an empty name is not
            read. ``*`` is the number of a layer that is named
            outside.
        layers: what stands before the number of a layer in a folder.
        transposed: our names of tensors that a folder stores with inputs first (GPT-2's Conv1D).
        less_one: whether folders store the gains of norms minus 1.
        interleaved, gguf_interleaved: whether rotary pairs are neighbours in folders and in GGUF.
        split: separates a folder's tensors of experts, if they are stored in a way of their own.
        gguf_facts: key of a GGUF file, without the architecture -> key of config.json.
        gguf_defaults: facts that GGUF files leave out, which llama.cpp has in its code.
        gguf_names: tensors of GGUF that differ from ``GGUF_NAMES``.
    """

    name: str
    fields: Callable[[Metadata], Fields]
    classes: tuple[str, ...] = ()
    model_types: tuple[str, ...] = ()
    gguf: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    nullable: frozenset[str] = frozenset()
    names: Mapping[str, str] = field(default_factory=lambda: LLAMA_NAMES)
    outside: Mapping[str, str] = field(default_factory=lambda: LLAMA_OUTSIDE)
    layers: str = "model.layers."
    transposed: frozenset[str] = frozenset()
    less_one: bool = False
    interleaved: bool = False
    gguf_interleaved: bool = False
    split: Callable[[str, Tensor], Iterable[tuple[str, Tensor]]] | None = None
    gguf_facts: Mapping[str, str] = field(default_factory=dict)
    gguf_defaults: Mapping[str, Any] = field(default_factory=dict)
    gguf_names: Mapping[str, str] = field(default_factory=dict)

    def canonical(self, stored: str) -> str:
        """Return our name of a folder's tensor; empty if it is not read.

        A folder of a network without its LM head leaves out the first part of the names.

        Raises:
            InvalidModel: the family has no such tensor.
        """
        if _UNSEEN.search(stored):
            return ""
        number = _NUMBER.search(stored)
        if number and (found := self.outside.get(_NUMBER.sub(".*.", stored, count=1))):
            return found.replace("*", str(int(number[1])))
        root, stored = self.layers.partition(".")[0], _TEXT.sub("", stored)
        for name in (stored, f"{root}.{stored}"):
            module, _, kind = name.rpartition(".")
            end = ".bias" if kind == "bias" else ""
            if kind not in ("weight", "bias"):
                module = name  # A parameter or a buffer of the module itself.
            if module in self.outside:
                return self.outside[module] + end
            index, _, part = module.removeprefix(self.layers).partition(".")
            if module.startswith(self.layers) and index.isdecimal():
                expert = _EXPERT.search(part)
                part = part if expert is None else _EXPERT.sub("experts.*.", part)
                whole = self.names.get(f"{part}.{kind}")
                known, end = (self.names.get(part), end) if whole is None else (whole, "")
                if known is not None:
                    known = known.replace("*", expert[1] if expert else "")
                    known = "router.logit_bias" if end and known == "router" else known + end
                    return known and f"layers.{int(index[:8])}.{known}"
        raise InvalidModel(stored, "tensor", "this model needs an operation that is not known")


# From facts to parts.


def common(values: Metadata, stack: tuple[Layer, ...], **more: Any) -> Fields:
    """Return the fields that all families have, with ``more`` of them."""
    return {
        "vocab_size": values.whole("vocab_size"),
        "hidden_size": values.whole("hidden_size"),
        "stack": stack,
        "context_length": values.whole("max_position_embeddings"),
        "norm_eps": values.number("rms_norm_eps", 1e-5),
        "tied_head": values.flag("tie_word_embeddings"),
        **more,
    }


def layers_of(values: Metadata) -> range:
    """Return the indices of the layers."""
    return range(values.whole("num_hidden_layers", None, 1, MOST_LAYERS))


def head_sizes(values: Metadata) -> tuple[int, int, int]:
    """Return the number of query heads, of key heads, and the size of a head."""
    heads = values.whole("num_attention_heads", None, 1, 1 << 16)
    size = values.whole("head_dim", values.whole("hidden_size") // heads, 1, 1024)
    return heads, values.whole("num_key_value_heads", heads), size


def attention_of(values: Metadata, rope: Rope | None, **more: Any) -> Attention:
    """Return the attention with a file's heads and biases, and ``more`` facts."""
    biased = values.flag("attention_bias")
    output_biased = values.flag("output_bias", biased)
    return Attention(
        *head_sizes(values), **{"rope": rope, "bias": biased, "output_bias": output_biased} | more
    )


_NAMED = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "relu": "relu", "relu2": "relu2",
}  # fmt: skip
"""transformers' name of an activation function -> ours."""


def feed_of(values: Metadata, key: str = "hidden_act", **more: Any) -> Feed:
    """Return the MLP with a file's size and activation function, and ``more`` facts.

    Args:
        key: names the activation function.
    """
    said = values.get(key)
    if said not in _NAMED:
        raise InvalidModel(key, said, f"use one of {', '.join(_NAMED)}")
    return Feed(values.whole("intermediate_size"), **{"activation": _NAMED[said]} | more)


def sliding_layers(values: Metadata, every: int) -> list[bool]:
    """Return for each layer whether it has the window: as listed, or all but each ``every``-th."""
    count, kinds = len(layers_of(values)), values.get("layer_types")
    if kinds is None:
        return [every == 0 or (index + 1) % every != 0 for index in range(count)]
    known = {"sliding_attention": True, "full_attention": False}
    if not isinstance(kinds, list) or len(kinds) != count or not {*map(str, kinds)} <= {*known}:
        raise InvalidModel("layer_types", kinds, f"give {count} of {', '.join(known)}")
    return [known[kind] for kind in kinds]


# From stored tensors to ours.


def separated(
    family: Family, config: ModelConfig, shapes: Shapes, own: str, tensor: Tensor, folder: bool
) -> Iterator[tuple[str, Tensor]]:
    """Yield our tensors of a stored one, with their names.

    Args:
        shapes: ``config.tensors()``.
        own: our name, which may be of a joined tensor; with the layer, and with ``.bias``.
        folder: whether the tensor is from a folder, not from GGUF.

    Raises:
        InvalidModel: a joined tensor has not the rows that the configuration implies.
    """
    if own.endswith(".mixer_norm"):  # What it norms depends on the layer.
        first = config.stack[int(own.split(".")[1])].parts[0]
        own = own.replace("mixer", NAMES[type(first)])
    if "?" in own:
        place, _, listed = own.partition(".")[2].partition(".")
        named = [f"layers.{place}.{each}" for each in listed.split("?")]
        own = next((each for each in named if each.split("+")[0] in shapes), named[-1])
    if _reads_other_keys(config, own):
        return  # transformers keeps weights here that it does not use.
    place, _, part = own.rpartition(".") if not own.endswith(".bias") else _biased(own)
    bias = ".bias" if own.endswith(".bias") else ""
    prefix = f"{place}." if place else ""
    if folder and part in family.transposed and not bias:
        turned = np.ascontiguousarray(tensor.float32().T)
        tensor = Tensor(turned, turned.shape)
    if part.endswith("_taps") and not bias:
        # A convolution is stored as [channels, 1, width], and GGUF's as [channels, width].
        flat = tensor.float32().reshape(-1)
        tensor = Tensor(flat, flat.shape, Kind.F32)
    names = re.split(r"[+/|]", part)
    if len(names) > 1:
        counts = [shapes.get(f"{prefix}{name}{bias}", (0,))[0] for name in names]
        if tensor.shape[:1] != (sum(counts),):
            raise InvalidModel(own, tensor.shape, f"the configuration implies {sum(counts)} rows")
        if "/" in part:
            tensor = tensor.rows(_by_heads(config, place, names, counts))
        elif "|" in part:
            tensor = tensor.rows(_by_blocks(sum(counts)))
        ends = np.cumsum([0, *counts]).tolist()
        for name, first, last in zip(names, ends, ends[1:]):
            some = Tensor(tensor.data[first:last], (last - first, *tensor.shape[1:]), tensor.kind)
            yield from _placed(family, config, f"{prefix}{name}{bias}", some, folder)
        return
    yield from _placed(family, config, own, tensor, folder)


def _reads_other_keys(config: ModelConfig, own: str) -> bool:
    """Return whether the tensor makes keys or values in a layer that reads another one's."""
    match = re.fullmatch(r"layers\.(\d+)\.(?:k|v|k_norm)(?:\.bias)?", own)
    attention = config.stack[int(match[1])].attention if match else None
    return attention is not None and attention.keys_of >= 0


def _biased(own: str) -> tuple[str, str, str]:
    return own.removesuffix(".bias").rpartition(".")


def _by_heads(
    config: ModelConfig, place: str, names: list[str], counts: list[int]
) -> NDArray[np.intp]:
    """Return the order of rows that brings all rows of the first name first, and so on.

    In the file, the rows of a key head stand together, or those of a query head and its gate.

    Args:
        counts: numbers of rows.
    """
    layer = config.stack[int(place.rpartition(".")[2])]
    if names[0].startswith("state_"):
        groups = next(part.key_heads for part in layer.states if isinstance(part, Recurrence))
    else:
        assert layer.attention is not None
        gated = "attn_gate" in names
        groups = layer.attention.heads if gated else layer.attention.kv_heads
    rows = np.arange(sum(counts)).reshape(groups, -1)
    parts = np.split(rows, np.cumsum(counts)[:-1] // groups, 1)
    return np.concatenate([part.ravel() for part in parts])


def _by_blocks(rows: int) -> NDArray[np.intp]:
    """Return the order of CodeGen's rows: four blocks in the file, each with all three parts."""
    return np.arange(rows).reshape(4, 3, -1).transpose(1, 0, 2).ravel()


def _placed(
    family: Family, config: ModelConfig, own: str, tensor: Tensor, folder: bool
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensor with the rows, and the gains, that the core expects."""
    place, _, part = _biased(own) if own.endswith(".bias") else own.rpartition(".")
    if part in ("q", "k") and (family.interleaved if folder else family.gguf_interleaved):
        attention = config.stack[int(place.rpartition(".")[2])].attention
        if attention is not None and attention.rope is not None:
            heads = attention.heads if part == "q" else attention.kv_heads
            tensor = tensor.rows(half_split(heads, attention.head_dim, attention.rope.dim))
    if part in ("state_decay", "state_skip", "state_dt_bias", "state_gain"):
        own_values = tensor.float32().reshape(-1)
        if folder and part == "state_decay":  # The logarithm of the negative is stored.
            own_values = -np.exp(own_values)
        tensor = Tensor(own_values, own_values.shape, Kind.F32)
    if own.endswith("shared.gain"):
        tensor = Tensor(tensor.data.reshape(1, -1), (1, math.prod(tensor.shape)), tensor.kind)
    gain = part.endswith("norm") or part.startswith("after_")
    if folder and family.less_one and gain:
        gains = tensor.float32() + 1
        tensor = Tensor(gains, gains.shape, Kind.F32)
    yield own, tensor


def half_split(heads: int, head_dim: int, rotated: int) -> NDArray[np.intp]:
    """Return the row order that moves each head's pairs (2j, 2j + 1) to (j, j + rotated / 2)."""
    head = np.arange(head_dim)
    head[:rotated] = np.arange(rotated).reshape(-1, 2).T.ravel()
    return (np.arange(heads)[:, None] * head_dim + head).ravel()
