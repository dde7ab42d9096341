"""The configuration of a model: its sizes, and the list of its layers' parts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

from paradecode.core.checks import anything, attributes, checked, flag, number, one_of, whole
from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.models.mixture import MOST_EXPERTS, MOST_LAYERS, Mixture
from paradecode.models.parts import Attention, Feed, Layer, Shapes
from paradecode.models.rope import Rope as Rope

MOST_EMBEDDINGS = 1 << 24
"""Largest number of rows of a table of learned positions."""


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and facts of a decoder-only transformer.

    Attributes:
        name: the model's name for users.
        architecture: family, for messages (``llama``, ``qwen2``, ...).
        vocab_size, hidden_size: number of tokens, and width D of the residual stream.
        stack: the layers, each a list of parts.
        context_length: largest number of positions.
        norm_kind: ``rms`` or ``layer``, for all norms of the stream.
        norm_eps: epsilon of every norm.
        norm_bias: whether norms of the stream have a bias.
        embed_factor: embeddings are multiplied by it.
        embed_norm: whether embeddings are normed (BLOOM).
        positions: rows of a table of learned positions, which are added to embeddings; 0: no table.
        token_width: width P of a token's second embeddings, one for each layer (see
            :class:`~paradecode.models.parts.TokenInput`); 0 means none.
        token_rows: number of tokens that have second embeddings.
        tied_head: whether the LM head is the embedding matrix.
        head_bias: whether the LM head has a bias.
        outputs: number of rows of the LM head, for a draft model that can propose only some of its
            tokens; 0 means all.
        logit_factor: logits are multiplied by it.
        softcap: then a logit l becomes ``softcap * tanh(l / softcap)``; 0 means no change.
        attention: ``causal``, ``full`` or ``block`` (masked diffusion; see ``block_length``).
        block_length: number of positions of a block, for ``block`` attention.
        mask_token: id of the mask token of a diffusion model, or None.
        shift: whether the logits of row i predict position i + 1 in a diffusion model, too.
        canvas_length: number of positions that a model without a mask token denoises together;
            otherwise 0. Such a model reads its last guess through an MLP, ``guess``.
        bos_token: id or None; ``add_bos`` says whether prompts start with it.
        eos_tokens: token ids that end a text.
        decoder: spec of the method that suits its family best; empty means the default method.
    """

    name: str
    architecture: str
    vocab_size: int = checked(whole(1, 1 << 21))
    hidden_size: int = checked(whole(1, 1 << 16))
    stack: tuple[Layer, ...] = checked(anything)
    context_length: int = checked(whole(1, 1 << 24), 2048)
    norm_kind: str = checked(one_of("rms", "layer"), "rms")
    norm_eps: float = checked(number(0, 0.999, above=True), 1e-5)
    norm_bias: bool = checked(flag, False)
    embed_factor: float = checked(number(0, 1e6, above=True), 1.0)
    embed_norm: bool = checked(flag, False)
    positions: int = checked(whole(0, MOST_EMBEDDINGS), 0)
    token_width: int = checked(whole(0, 1 << 16), 0)
    token_rows: int = checked(whole(0, 1 << 21), 0)
    tied_head: bool = False
    head_bias: bool = checked(flag, False)
    outputs: int = checked(whole(0, 1 << 21), 0)
    logit_factor: float = checked(number(0, 1e6, above=True), 1.0)
    softcap: float = checked(number(0, 1e6), 0.0)
    attention: str = checked(one_of("causal", "full", "block"), "causal")
    block_length: int = checked(whole(), 0)
    mask_token: int | None = None
    shift: bool = checked(flag, False)
    canvas_length: int = checked(whole(0, 1 << 16), 0)
    bos_token: int | None = None
    add_bos: bool = False
    eos_tokens: tuple[int, ...] = ()
    decoder: str = ""

    def __post_init__(self) -> None:
        attributes(self, error=InvalidModel)
        _check_layers(len(self.stack))
        if self.outputs > self.vocab_size or (self.outputs and self.tied_head):
            fix = f"an LM head of its own has at most {self.vocab_size} rows"
            raise InvalidModel("outputs", self.outputs, fix)
        experts = sum(layer.feed.mixture.experts for layer in self.stack
                      if layer.feed and layer.feed.mixture)  # fmt: skip
        if experts > MOST_EXPERTS:
            fix = f"with {self.layers} layers give at most {MOST_EXPERTS // self.layers}"
            raise InvalidModel("mixture.experts", self.mixture and self.mixture.experts, fix)
        if not (self.attention == "block") <= self.block_length <= 1 << 16:
            raise InvalidModel("block_length", self.block_length, "blocks have 1 to 65536 tokens")
        if self.norm_bias and self.norm_kind == "rms":
            raise InvalidModel("norm_bias", True, "only LayerNorm has a bias")
        if self.positions and self.positions < self.context_length:
            fix = f"the table of positions has {self.positions} rows"
            raise InvalidModel("context_length", self.context_length, fix)
        if self.keeps_states and not self.writes:
            fix = "layers with a state read a text from left to right only"
            raise InvalidModel("attention", self.attention, fix)
        self._check_shared_keys()
        self._check_token_inputs()
        for name in ("eos_tokens", "bos_token", "mask_token"):
            value = getattr(self, name)
            for token in value if isinstance(value, tuple) else (value,):
                if token is not None and not 0 <= token < self.vocab_size:
                    fix = f"the vocabulary has ids 0 to {self.vocab_size - 1}"
                    raise InvalidModel(name, token, fix)

    def _check_shared_keys(self) -> None:
        """Raise InvalidModel if a layer reads keys that no earlier layer of its kind keeps."""
        for index, attention in self.attentions():
            if attention.keys_of < 0:
                continue
            of = self.stack[attention.keys_of].attention if attention.keys_of < index else None
            alike = of is not None and of.keys_of < 0 and (
                (of.kv_heads, of.head_dim, of.window)
                == (attention.kv_heads, attention.head_dim, attention.window)
            )  # fmt: skip
            if not alike:
                fix = "name an earlier layer with keys of its own, of the same shape and window"
                raise InvalidModel("keys_of", attention.keys_of, fix)

    def _check_token_inputs(self) -> None:
        """Raise InvalidModel if layers read second embeddings that the model does not have."""
        for layer in self.stack:
            if layer.token_input and layer.token_input.size != self.token_width:
                fix = f"the model's second embeddings have {self.token_width} numbers"
                raise InvalidModel("token_input.size", layer.token_input.size, fix)

    @cached_property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.stack)

    def attentions(self) -> Iterator[tuple[int, Attention]]:
        """Yield the index and the attention of each layer that attends."""
        for index, layer in enumerate(self.stack):
            if layer.attention is not None:
                yield index, layer.attention

    @cached_property
    def keeps_states(self) -> bool:
        """True if some layers keep a state (see :mod:`paradecode.models.recurrence`)."""
        return any(layer.states for layer in self.stack)

    @cached_property
    def record_numbers(self) -> int:
        """The number of float32 values that a row leaves in all layers with a state."""
        parts = (part for layer in self.stack for part in layer.states)
        return sum(part.record_numbers(self.hidden_size) for part in parts)

    @cached_property
    def state_numbers(self) -> int:
        """The number of float32 values that a page begins with in all layers with a state."""
        parts = (part for layer in self.stack for part in layer.states)
        return sum(part.state_numbers(self.hidden_size) for part in parts)

    @cached_property
    def _first(self) -> Attention:
        return next((attention for _, attention in self.attentions()), Attention(1, 1, 1))

    @cached_property
    def _feed(self) -> Feed:
        return next(layer.feed for layer in self.stack if layer.feed is not None)

    @cached_property
    def uniform(self) -> bool:
        """True if all layers are alike, up to experts in place of an MLP."""
        return len({_kind(layer) for layer in self.stack}) == 1

    @cached_property
    def plain(self) -> bool:
        """True if the layers are Llama's and all alike, so that draft heads can imitate them.

        They may have a window, biases, norms of each head, and experts.
        """
        attention = self.stack[0].attention
        if attention is None or attention.rope is None or not self.uniform:
            return False
        usual = Attention(
            attention.heads, attention.kv_heads, attention.head_dim, rope=attention.rope,
            window=attention.window, bias=attention.bias, output_bias=attention.output_bias,
            qk_norm=attention.qk_norm,
        )  # fmt: skip
        feed = self._feed
        around = (self.norm_kind, self.embed_factor, self.embed_norm, self.positions,
                  self.head_bias, self.logit_factor, self.softcap)  # fmt: skip
        return (
            attention == usual and attention.qk_norm != "all" and attention.norm == "before"
            and (feed.norm, feed.activation, feed.gated) == ("before", "silu", True)
            and feed.gate_factor == feed.out_factor == 1
            and self.stack[0] == Layer(self.stack[0].parts)
            and around == ("rms", 1.0, False, 0, False, 1.0, 0.0)
        )  # fmt: skip

    # Facts of the first layer that has them, which is each layer of a uniform model.

    @cached_property
    def heads(self) -> int:
        """Number of query heads of the first attention."""
        return self._first.heads

    @cached_property
    def kv_heads(self) -> int:
        """Number of key and value heads of the first attention."""
        return self._first.kv_heads

    @cached_property
    def head_dim(self) -> int:
        """Size of a head of the first attention."""
        return self._first.head_dim

    @cached_property
    def rope(self) -> Rope:
        """Rotary positions of the first attention that has them."""
        return next(a.rope for _, a in self.attentions() if a.rope is not None)

    @cached_property
    def sliding_window(self) -> int:
        """Number of positions that a row sees in the first attention; 0 means all."""
        return self._first.window

    @cached_property
    def qkv_bias(self) -> bool:
        """True if the first attention's queries, keys and values have biases."""
        return self._first.bias

    @cached_property
    def output_bias(self) -> bool:
        """True if the first attention's output projection has a bias."""
        return self._first.output_bias

    @cached_property
    def qk_norm(self) -> bool:
        """True if the first attention norms its queries and keys."""
        return self._first.qk_norm != "none"

    @cached_property
    def mlp_bias(self) -> bool:
        """True if the first MLP has biases."""
        return self._feed.bias

    @cached_property
    def intermediate_size(self) -> int:
        """Inner width of the first MLP, or of an expert if no layer has an MLP."""
        feeds = [layer.feed for layer in self.stack if layer.feed is not None]
        mixture = self.mixture
        return next(
            (feed.size for feed in feeds if feed.size), mixture.expert_size if mixture else 0
        )

    @cached_property
    def mixture(self) -> Mixture | None:
        """The first layer's experts that there are, or None."""
        feeds = [layer.feed for layer in self.stack if layer.feed is not None]
        return next((feed.mixture for feed in feeds if feed.mixture is not None), None)

    @cached_property
    def writes(self) -> bool:
        """True if the model can generate from left to right, and score texts."""
        return self.attention == "causal" and not self.canvas_length

    @cached_property
    def said(self) -> int:
        """The number of rows of the LM head."""
        return self.outputs or self.vocab_size

    def tensors(self) -> Shapes:
        """Return canonical name -> shape of every weight of this architecture, rows first.

        ``embed`` [V, D], ``head`` [V or ``outputs``, D] (absent when tied), ``head.bias``, ``norm``
        [D], ``norm.bias``, ``embed_norm`` [D], ``positions`` [rows, D], and for each layer
        ``layers.N.`` those of :meth:`Layer.tensors`. Second embeddings are ``token_embed`` [rows,
        layers * P], ``token_project`` [layers * P, D] and ``token_norm`` [P]; a canvas model has
        ``guess.norm`` [D], ``guess.gate`` and ``guess.up`` [F, D], and ``guess.down`` [D, F].
        """
        d = self.hidden_size
        shapes: Shapes = {"embed": (self.vocab_size, d), "norm": (d,)}
        if self.embed_norm:
            shapes["embed_norm"] = (d,)
        if self.norm_bias:
            shapes |= {f"{name}.bias": (d,) for name in list(shapes) if name.endswith("norm")}
        if self.positions:
            shapes["positions"] = (self.positions, d)
        if self.token_width:
            wide = self.layers * self.token_width
            shapes |= {"token_embed": (self.token_rows, wide), "token_project": (wide, d)}
            shapes["token_norm"] = (self.token_width,)
        if not self.tied_head:
            shapes["head"] = (self.said, d)
        if self.head_bias:
            shapes["head.bias"] = (self.said,)
        if self.canvas_length:
            f = self.intermediate_size
            shapes |= {"guess.norm": (d,), "guess.gate": (f, d), "guess.up": (f, d)}
            shapes["guess.down"] = (d, f)
        for index, layer in enumerate(self.stack):
            own = layer.tensors(d, self.norm_bias, bool(self.canvas_length))
            shapes |= {f"layers.{index}.{name}": shape for name, shape in own.items()}
        return shapes

    def altered(self, **changes: Any) -> ModelConfig:
        """Return the configuration with other facts, named as in :func:`uniform`.

        Facts that name no part are replaced in any model. Facts of parts need a uniform model, and
        ``layers`` alone cuts the stack of any model.

        Raises:
            InvalidModel: facts of parts are to be replaced, and the model has none of its own (see
                :meth:`facts`).
        """
        known = {each.name for each in fields(self)}
        if not changes.keys() - known:
            return replace(self, **changes)
        count = changes.get("layers", self.layers)
        if not changes.keys() - known - {"layers"} and count <= self.layers:
            own = {name: value for name, value in changes.items() if name in known}
            return replace(self, stack=self.stack[:count], **own)
        return uniform(**(self.facts() | changes))

    def facts(self) -> dict[str, Any]:
        """Return the facts of a uniform model, named as the arguments of :func:`uniform`.

        Raises:
            InvalidModel: the layers differ, or they have facts that Llama's have not.
        """
        if not self.plain:
            fix = "only models whose layers are all like Llama's are described by these facts"
            raise InvalidModel("stack", self.architecture, fix)
        facts = {each.name: getattr(self, each.name) for each in fields(self)}
        del facts["stack"]
        own = ("layers", "heads", "kv_heads", "head_dim", "intermediate_size", "rope", "qkv_bias",
               "output_bias", "mlp_bias", "qk_norm", "mixture", "sliding_window")  # fmt: skip
        facts |= {name: getattr(self, name) for name in own}
        mlps = (i for i, layer in enumerate(self.stack) if layer.feed and layer.feed.size)
        return facts | {"dense": frozenset(mlps) if self.mixture else frozenset[int]()}


def uniform(
    name: str,
    architecture: str,
    vocab_size: int,
    hidden_size: int,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    intermediate_size: int,
    *,
    rope: Rope | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    mixture: Mixture | None = None,
    dense: frozenset[int] = frozenset(),
    sliding_window: int = 0,
    **facts: Any,
) -> ModelConfig:
    """Return the configuration of Llama's layers, all alike: RMSNorm, rotary positions and SwiGLU.

    Args:
        intermediate_size: inner width of an MLP.
        rope: rotary positions; by default all of a head is rotated.
        qk_norm: whether each head of queries and keys has a norm (Qwen3).
        mixture: the experts in place of MLPs, but not in the layers ``dense``.
        facts: further fields of :class:`ModelConfig`.

    Raises:
        InvalidModel: a value is out of range.
    """
    _check_layers(layers)
    attention = Attention(
        heads, kv_heads, head_dim, rope=Rope(dim=head_dim) if rope is None else rope,
        window=sliding_window, bias=qkv_bias, output_bias=output_bias,
        qk_norm="head" if qk_norm else "none",
    )  # fmt: skip
    mlp = Feed(intermediate_size, bias=mlp_bias) if mixture is None or dense else None
    feed = mlp or Feed(0, mixture=mixture)
    mixed = feed if mixture is None else Feed(0, mixture=mixture)
    stack = tuple(Layer((attention, feed if index in dense else mixed)) for index in range(layers))
    return ModelConfig(name, architecture, vocab_size, hidden_size, stack, **facts)


def _kind(layer: Layer) -> tuple[object, ...]:
    """Return what layers have in common that are alike, up to experts in place of an MLP."""
    feed = layer.feed
    about = feed and (feed.norm, feed.activation, feed.gated, feed.bias, feed.gate_factor,
                      feed.out_factor)  # fmt: skip
    own = layer.attention, layer.states, about, layer.token_input
    return *own, *map(len, layer.groups), layer.ladder, layer.scaled


def _check_layers(layers: object) -> None:
    """Raise InvalidModel unless a model can have so many layers."""
    try:
        whole(1, MOST_LAYERS)("layers", layers)
    except InvalidInput as error:
        raise InvalidModel("layers", layers, error.fix) from None
