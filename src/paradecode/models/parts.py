"""The parts of a layer, each with its norms, its weights and the numbers that it stores.

A part reads the residual stream and adds to it. :class:`Attention` looks at earlier rows, the
``STATE_PARTS`` at a state, and :class:`Feed` and :class:`TokenInput` compute each row by itself. A
:class:`Layer` runs groups of parts one after the other, and the parts of a group side by side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Union

from paradecode.core.checks import attributes, checked, flag, number, one_of, whole
from paradecode.core.errors import InvalidModel
from paradecode.models.mixture import Mixture
from paradecode.models.recurrence import Convolution, Recurrence
from paradecode.models.rope import Rope
from paradecode.models.small_states import Cells, LinearUnit, SelectiveScan, SmallState

Shapes = dict[str, tuple[int, ...]]
"""Name of a tensor in its layer -> its shape, rows first."""
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "relu2", "swiglu_oai")
"""Activation functions. ``gelu`` is the one with the error function. ``relu2`` is the square of
relu. ``swiglu_oai`` is gpt-oss's: ``gate * sigmoid(1.702 gate) * (up + 1)``, where ``gate`` is cut
to at most 7 and ``up`` to -7 to 7."""
NORMS = ("before", "after", "both", "none", "shared")


@dataclass(frozen=True)
class Attention:
    """Each row mixes the values of the rows that it sees.

    Attributes:
        heads, kv_heads, head_dim: number of query heads, number of key and value heads, and size of
            a head.
        norm: ``before`` (what enters is normed: ``attn_norm``), ``after`` (what the part made is
            normed before it is added: ``after_attn``), ``both`` or ``none``.
        rope: rotary positions of queries and keys, or None.
        alibi: whether a score falls linearly with the distance of the two rows (arXiv 2108.12409).
        window: number of positions that each row sees, including itself; 0 means all.
        scale: factor of the scores; 0 means the inverse root of ``head_dim``.
        softcap: a score s becomes ``softcap * tanh(s / softcap)``; 0 means no change.
        sinks: whether each head has one more score, which takes weight and has no value.
        bias: whether ``q``, ``k`` and ``v`` have biases.
        output_bias: whether ``o`` has a bias.
        qk_norm: ``none``, ``head`` (an RMSNorm of each head of queries and keys, with one gain for
            all heads) or ``all`` (one RMSNorm over all heads together).
        norm_turned: whether ``qk_norm`` comes after the rotation.
        value_norm: whether each head of values has an RMSNorm without a gain.
        keys_as_values: whether the values are the keys before their norm and rotation.
        growth, growth_every: queries at position p are multiplied by ``1 + growth * log(1 + p //
            growth_every)`` (Llama 4, Ministral 3).
        query_rank: if not 0, queries are ``q (norm (q_down x))`` with this inner width.
        keys_of: the layer whose keys and values this one reads, in place of its own; -1: its own.
        gated: whether what the heads mixed is multiplied by ``sigmoid(attn_gate x)`` before ``o``
            (Qwen3-Next).
        out_factor: what the part made is multiplied by it before it is added.
    """

    heads: int = checked(whole(1, 1024))
    kv_heads: int = checked(whole(1, 1024))
    head_dim: int = checked(whole(1, 1024))
    norm: str = checked(one_of("before", "after", "both", "none"), "before")
    rope: Rope | None = None
    alibi: bool = checked(flag, False)
    window: int = checked(whole(0, 1 << 24), 0)
    scale: float = checked(number(0, 1e6), 0.0)
    softcap: float = checked(number(0, 1e6), 0.0)
    sinks: bool = checked(flag, False)
    bias: bool = checked(flag, False)
    output_bias: bool = checked(flag, False)
    qk_norm: str = checked(one_of("none", "head", "all"), "none")
    norm_turned: bool = checked(flag, False)
    value_norm: bool = checked(flag, False)
    keys_as_values: bool = checked(flag, False)
    growth: float = checked(number(0, 1e3), 0.0)
    growth_every: int = checked(whole(1, 1 << 39), 8192)
    query_rank: int = checked(whole(0, 1 << 16), 0)
    keys_of: int = checked(whole(-1, 4096), -1)
    gated: bool = checked(flag, False)
    out_factor: float = checked(number(0, 1e6, above=True), 1.0)

    def __post_init__(self) -> None:
        attributes(self, error=InvalidModel)
        if self.heads % self.kv_heads:
            raise InvalidModel("kv_heads", self.kv_heads, f"it must divide heads ({self.heads})")
        if self.rope is not None:
            if not 2 <= self.rope.dim <= self.head_dim or self.rope.dim % 2:
                fix = f"give an even number up to head_dim ({self.head_dim})"
                raise InvalidModel("rope.dim", self.rope.dim, fix)
            self.rope.check()

    @property
    def factor(self) -> float:
        """The factor of the scores."""
        return self.scale or 1 / math.sqrt(self.head_dim)

    def slopes(self) -> list[float]:
        """Return each head's ALiBi slope: what a score loses with each position of distance."""
        most = 2 ** int(math.log2(self.heads))
        return [2 ** (-8 * (i + 1) / most) for i in range(most)] + [
            2 ** (-4 * (2 * i + 1) / most) for i in range(self.heads - most)
        ]

    @property
    def slot_numbers(self) -> int:
        """The number of values that the part stores for a row: its key and its value, or none."""
        return 0 if self.keys_of >= 0 else 2 * self.kv_heads * self.head_dim

    def tensors(self, hidden: int) -> Shapes:
        """Return the shapes of its weights, without the norms of the stream.

        ``q`` [H*d, D], ``k`` and ``v`` [G*d, D], ``o`` [D, H*d], biases as ``q.bias`` ...;
        ``q_norm`` and ``k_norm`` [d], or [H*d] and [G*d] for a norm over all heads; ``q_down``
        [rank, D] and ``q_inner_norm`` [rank]; ``sinks`` [H]; ``attn_gate`` [H*d, D].
        """
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        own, shapes = self.keys_of < 0, Shapes()
        if self.query_rank:
            shapes |= {"q_down": (self.query_rank, hidden), "q_inner_norm": (self.query_rank,)}
        shapes["q"] = (q, self.query_rank or hidden)
        if own:
            shapes["k"] = (kv, hidden)
            if not self.keys_as_values:
                shapes["v"] = (kv, hidden)
        shapes["o"] = (hidden, q)
        if self.gated:
            shapes["attn_gate"] = (q, hidden)
        if self.bias:
            biased = [name for name in ("q", "k", "v", "attn_gate") if name in shapes]
            shapes |= {f"{name}.bias": shapes[name][:1] for name in biased}
        if self.output_bias:
            shapes["o.bias"] = (hidden,)
        if self.qk_norm != "none":
            whole_norm = self.qk_norm == "all"
            shapes["q_norm"] = (q if whole_norm else self.head_dim,)
            if own:
                shapes["k_norm"] = (kv if whole_norm else self.head_dim,)
        if self.sinks:
            shapes["sinks"] = (self.heads,)
        return shapes


@dataclass(frozen=True)
class Feed:
    """A row goes through an MLP, through the experts that a router chooses, or through both.

    Attributes:
        size: inner width of the MLP; 0 if there are only experts.
        norm: as :attr:`Attention.norm`, with ``mlp_norm`` and ``after_mlp``; ``shared``: what the
            norm of the attention beside it made enters here, too.
        activation: one of ``ACTIVATIONS``.
        gated: whether the inner values are ``activation(gate x) * (up x)`` or ``activation(up x)``.
        bias: whether the MLP's matrices have biases.
        mixture: the experts, or None. If there is an MLP as well (Gemma 4), both have norms of
            their own, ``experts_norm``, ``after_experts`` and ``after_dense``, and
            ``after_mlp`` is the norm of their sum.
        gate_factor: ``gate x`` is multiplied by it.
        out_factor: as :attr:`Attention.out_factor`.
    """

    size: int = checked(whole(0, 1 << 20))
    norm: str = checked(one_of(*NORMS), "before")
    activation: str = checked(one_of(*ACTIVATIONS), "silu")
    gated: bool = checked(flag, True)
    bias: bool = checked(flag, False)
    mixture: Mixture | None = None
    gate_factor: float = checked(number(0, 1e6, above=True), 1.0)
    out_factor: float = checked(number(0, 1e6, above=True), 1.0)

    def __post_init__(self) -> None:
        attributes(self, error=InvalidModel)
        if not self.size and self.mixture is None:
            raise InvalidModel("intermediate_size", 0, "give 1 and more")
        if self.gate_factor != 1 and (self.mixture or not self.gated):
            raise InvalidModel("gate_factor", self.gate_factor, "only an MLP with a gate has one")

    slot_numbers = 0

    def tensors(self, hidden: int) -> Shapes:
        """Return the shapes of its weights, without the norms of the stream.

        ``gate`` and ``up`` [F, D], ``down`` [D, F], and biases as ``gate.bias`` ...; the experts
        have ``Mixture.tensors``.
        """
        shapes: Shapes = {}
        if self.size:
            if self.gated:
                shapes["gate"] = (self.size, hidden)
            shapes |= {"up": (self.size, hidden), "down": (hidden, self.size)}
            if self.bias:
                shapes |= {f"{name}.bias": shape[:1] for name, shape in shapes.items()}
        if self.mixture is not None:
            shapes |= self.mixture.tensors(hidden, self.gated)
            if self.size:
                shapes |= dict.fromkeys(("experts_norm", "after_experts", "after_dense"), (hidden,))
        return shapes


@dataclass(frozen=True)
class TokenInput:
    """A row reads a second embedding of its token, which each layer has for itself (Gemma 4).

    The part adds ``norm(out (activation(gate x) * input))``; ``input`` [P] is made once for all
    layers, from the token and the row's first state (see ``ModelConfig.token_width``).

    Attributes:
        size: P, the width of such an embedding.
        activation: one of ``ACTIVATIONS``.
    """

    size: int = checked(whole(1, 1 << 16))
    activation: str = checked(one_of(*ACTIVATIONS), "gelu_tanh")

    def __post_init__(self) -> None:
        attributes(self, error=InvalidModel)

    norm = "after"
    out_factor = 1.0
    slot_numbers = 0

    def tensors(self, hidden: int) -> Shapes:
        """Return ``input_gate`` [P, D] and ``input_out`` [D, P]."""
        return {"input_gate": (self.size, hidden), "input_out": (hidden, self.size)}


StatePart = Union[Convolution, Recurrence, SmallState]
STATE_PARTS = (Convolution, Recurrence, Cells, SelectiveScan, LinearUnit)
Part = Union[Attention, StatePart, Feed, TokenInput]
NAMES = {
    Attention: "attn", Convolution: "conv", Recurrence: "state", Cells: "cell",
    SelectiveScan: "scan", LinearUnit: "unit", Feed: "mlp", TokenInput: "input",
}  # fmt: skip
"""The part's name in the names of its norms: ``attn_norm``, ``after_attn`` and so on."""
_LATE = {f"{name}.bias": 1 for name in ("q", "k", "v", "o", "gate", "up", "down")}
_LATE |= {"q_norm": 2, "k_norm": 2}
"""Tensors that a layer lists behind all others, in this order."""


@dataclass(frozen=True)
class Layer:
    """The parts of a layer, in the order in which they run.

    Attributes:
        order: at most one part of each kind, in the order attention, ``STATE_PARTS``, feed, token
            input. Parts in a tuple are side by side: they read the same stream, and their sum is
            added to it.
        ladder: whether a part reads the stream without what the part before it made (arXiv
            2501.06589), in place of all that was left.
        scaled: whether the stream behind the layer is multiplied by the weight ``scale``; a canvas
            (``ModelConfig.canvas_length``) has its own, ``canvas_scale``.
    """

    order: tuple[Part | tuple[Part, ...], ...]
    ladder: bool = checked(flag, False)
    scaled: bool = checked(flag, False)

    def __post_init__(self) -> None:
        attributes(self, error=InvalidModel)
        kinds = [type(part) for part in self.parts]
        if not all(self.groups) or not kinds or kinds != [kind for kind in NAMES if kind in kinds]:
            said = ", ".join(kind.__name__ for kind in kinds)
            order = ", ".join(kind.__name__ for kind in NAMES)
            raise InvalidModel("parts", said, f"give {order} in this order")
        if self.ladder and self.beside:
            raise InvalidModel("ladder", True, "its parts run one after the other")
        for first, *others in self.groups:
            normed = isinstance(first, Attention) and first.norm in ("before", "both")
            if "shared" in (first.norm, *[one.norm for one in others if not normed]):
                fix = "only parts beside an attention with a norm before it share that"
                raise InvalidModel("norm", "shared", fix)
        plain = tuple(group if len(group) > 1 else group[0] for group in self.groups)
        object.__setattr__(self, "order", plain)

    @cached_property
    def groups(self) -> tuple[tuple[Part, ...], ...]:
        """The groups of parts that run one after the other."""
        return tuple(each if isinstance(each, tuple) else (each,) for each in self.order)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """All parts."""
        return tuple(part for group in self.groups for part in group)

    @property
    def beside(self) -> bool:
        """True if some parts are side by side."""
        return len(self.groups) < len(self.parts)

    @property
    def attention(self) -> Attention | None:
        """The layer's attention, or None."""
        return next((part for part in self.parts if isinstance(part, Attention)), None)

    @property
    def states(self) -> tuple[StatePart, ...]:
        """The layer's parts with a state."""
        return tuple(part for part in self.parts if isinstance(part, STATE_PARTS))

    @property
    def feed(self) -> Feed | None:
        """The layer's MLP or experts, or None."""
        return next((part for part in self.parts if isinstance(part, Feed)), None)

    @property
    def token_input(self) -> TokenInput | None:
        """The layer's reading of its token's second embedding, or None."""
        return next((part for part in self.parts if isinstance(part, TokenInput)), None)

    def tensors(self, hidden: int, norm_bias: bool, canvas: bool) -> Shapes:
        """Return the shapes of all of its weights: those of its parts, norms and factors.

        Args:
            norm_bias: whether norms of the stream have biases, ``attn_norm.bias`` and so on.
            canvas: whether the model refines canvases.
        """
        shapes: Shapes = {}
        for part in self.parts:
            name = NAMES[type(part)]
            norms = [f"{name}_norm"] if part.norm in ("before", "both") else []
            norms += [f"after_{name}"] if part.norm in ("after", "both") else []
            for norm in norms:
                shapes[norm] = (hidden,)
                if norm_bias:
                    shapes[f"{norm}.bias"] = (hidden,)
            shapes |= part.tensors(hidden)
        if self.scaled:
            shapes["scale"] = (1,)
            if canvas:
                shapes["canvas_scale"] = (1,)
        # Random models draw their weights in this order.
        return dict(sorted(shapes.items(), key=lambda item: _LATE.get(item[0], 0)))
