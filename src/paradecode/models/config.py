"""The configuration of a model: one record for every architecture of the Llama family."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.checks import attributes, checked, flag, number, one_of, whole
from paradecode.core.errors import InvalidModel
from paradecode.models.gemma import Gemma
from paradecode.models.mixture import MOST_EXPERTS, MOST_LAYERS, Mixture

_POSITIVE = number(1e-12, 1e12)


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding, always in the half-split layout (element i pairs with i + d/2).

    Attributes:
        theta: base of the wavelengths.
        dim: number of leading dimensions of a head that are rotated (partial rotary when <
            head_dim).
        scaling: ``none``, ``linear``, ``llama3``, ``yarn`` or ``longrope``.
        factor, low_freq_factor, high_freq_factor, original_context: parameters of the scaling.
        attention_factor: cosines and sines are multiplied by it (yarn, longrope).
        beta_fast, beta_slow: yarn's correction range, in rotations.
        truncate: whether yarn's correction range is rounded to whole pairs.
        factors: one divisor for each rotated pair, or empty. They replace ``scaling``; GGUF files
            store the llama3 scaling in this form.
    """

    theta: float = checked(_POSITIVE, 10000.0)
    dim: int = 64
    scaling: str = checked(one_of("none", "linear", "llama3", "yarn", "longrope"), "none")
    factor: float = checked(_POSITIVE, 1.0)
    low_freq_factor: float = checked(_POSITIVE, 1.0)
    high_freq_factor: float = checked(_POSITIVE, 4.0)
    original_context: int = checked(whole(1, 1 << 39), 8192)
    attention_factor: float = checked(_POSITIVE, 1.0)
    beta_fast: float = checked(_POSITIVE, 32.0)
    beta_slow: float = checked(_POSITIVE, 1.0)
    truncate: bool = checked(flag, True)
    factors: tuple[float, ...] = ()

    def inverse_frequencies(self) -> NDArray[np.float64]:
        """Return each rotated pair's angle per position, with all scaling: float64 [dim / 2].

        The angle of pair i at position p is ``p * inverse_frequencies()[i]``; cosines and sines are
        then multiplied by ``attention_factor``.
        """
        base = self.theta ** -(np.arange(0, self.dim, 2, dtype=np.float64) / self.dim)
        if self.factors:
            return base / np.asarray(self.factors)
        if self.scaling == "linear":
            return base / self.factor
        if self.scaling == "llama3":
            rotations = self.original_context * base / (2 * np.pi)
            span = self.high_freq_factor - self.low_freq_factor
            keep = np.clip((rotations - self.low_freq_factor) / span, 0, 1)
            return keep * base + (1 - keep) * base / self.factor
        if self.scaling == "yarn":
            low, high = self._pair_of(self.beta_fast), self._pair_of(self.beta_slow)
            if self.truncate:
                low, high = math.floor(low), math.ceil(high)
            low, high = max(low, 0), min(high, self.dim - 1)
            ramp = (np.arange(self.dim // 2) - low) / (high - low or 0.001)
            stretch = np.clip(ramp, 0, 1)
            return (1 - stretch) * base + stretch * base / self.factor
        return base

    def _pair_of(self, rotations: float) -> float:
        """Return the (fractional) index of the pair that rotates this often in the old context."""
        turns = self.original_context / (rotations * 2 * math.pi)
        return self.dim * math.log(turns) / (2 * math.log(self.theta))

    def check_contexts(self, context: int) -> None:
        """Warn if the scaling contradicts the ratio of the new context to the original one."""
        original, ratio = self.original_context, context / self.original_context
        if self.scaling == "yarn" and original != context:
            if not math.isclose(ratio, self.factor, rel_tol=1e-3):
                said = f"rope: factor {self.factor:g} is used, although the contexts {original} and"
                warnings.warn(f"{said} {context} have the ratio {ratio:g}", stacklevel=3)
        elif self.scaling == "llama3" and original >= context:
            said = f"rope: the context before scaling, {original}, is used, although it is not less"
            warnings.warn(f"{said} than the context of the model, {context}", stacklevel=3)

    def check(self) -> None:
        """Raise InvalidModel if a number is out of range (NaN and infinity included)."""
        attributes(self, None, "rope.", InvalidModel)
        if self.scaling == "yarn" and self.theta <= 1:
            raise InvalidModel("rope.theta", self.theta, "yarn needs a base above 1")
        if self.scaling == "llama3" and self.high_freq_factor <= self.low_freq_factor:
            raise InvalidModel(
                "rope.high_freq_factor", self.high_freq_factor, "it must exceed low_freq_factor"
            )
        if self.factors and len(self.factors) != self.dim // 2:
            raise InvalidModel("rope.factors", len(self.factors), f"give {self.dim // 2} factors")
        if not all(1e-12 < factor < 1e12 for factor in self.factors):
            raise InvalidModel("rope.factors", self.factors, "give positive numbers")


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and facts of a decoder-only transformer with RMSNorm, rotary positions and SwiGLU.

    Attributes:
        name: the model's name for users.
        architecture: family, for messages (``llama``, ``qwen2``, ...).
        vocab_size, hidden_size, layers, heads, kv_heads, head_dim, intermediate_size: shapes.
        context_length: largest number of positions.
        norm_eps: epsilon of every RMSNorm.
        rope: rotary parameters.
        tied_head: whether the LM head is the embedding matrix.
        outputs: number of rows of the LM head, for a draft model that can propose only some of its
            tokens; 0 means all.
        qkv_bias, output_bias, mlp_bias: which projections have a bias.
        qk_norm: whether each head of queries and keys has an RMSNorm (Qwen3).
        mixture: the experts that replace the MLP of layers, or None.
        gemma: further facts about Gemma 4's layers; None for other models.
        sliding_window: number of positions that each row sees, including itself; 0 means all.
        attention: ``causal``, ``full`` or ``block`` (masked diffusion; see ``block_length``).
        block_length: number of positions of a block, for ``block`` attention.
        mask_token: id of the mask token of a diffusion model, or None.
        shift: whether the logits of row i predict position i + 1 in a diffusion model, too.
        bos_token: id or None; ``add_bos`` says whether prompts start with it.
        eos_tokens: token ids that end a text.
        decoder: spec of the method that suits its family best; empty means the default method.
    """

    name: str
    architecture: str
    vocab_size: int = checked(whole(1, 1 << 21))
    hidden_size: int = checked(whole(1, 1 << 16))
    layers: int = checked(whole(1, MOST_LAYERS))
    heads: int = checked(whole(1, 1024))
    kv_heads: int = checked(whole(1, 1024))
    head_dim: int = checked(whole(1, 1024))
    intermediate_size: int = checked(whole(1, 1 << 20))
    context_length: int = checked(whole(1, 1 << 24), 2048)
    norm_eps: float = checked(number(0, 0.999, above=True), 1e-5)
    rope: Rope = field(default_factory=Rope)
    tied_head: bool = False
    outputs: int = checked(whole(0, 1 << 21), 0)
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    mixture: Mixture | None = None
    gemma: Gemma | None = None
    sliding_window: int = checked(whole(0, 1 << 24), 0)
    attention: str = checked(one_of("causal", "full", "block"), "causal")
    block_length: int = checked(whole(), 0)
    mask_token: int | None = None
    shift: bool = checked(flag, False)
    bos_token: int | None = None
    add_bos: bool = False
    eos_tokens: tuple[int, ...] = ()
    decoder: str = ""

    def __post_init__(self) -> None:
        attributes(self, error=InvalidModel)
        if self.heads % self.kv_heads:
            raise InvalidModel("kv_heads", self.kv_heads, f"it must divide heads ({self.heads})")
        if not 2 <= self.rope.dim <= self.head_dim or self.rope.dim % 2:
            raise InvalidModel(
                "rope.dim", self.rope.dim, f"give an even number up to head_dim ({self.head_dim})"
            )
        self.rope.check()
        if self.outputs > self.vocab_size or (self.outputs and self.tied_head):
            fix = f"an LM head of its own has at most {self.vocab_size} rows"
            raise InvalidModel("outputs", self.outputs, fix)
        if self.mixture is not None and self.layers * self.mixture.experts > MOST_EXPERTS:
            fix = f"with {self.layers} layers give at most {MOST_EXPERTS // self.layers}"
            raise InvalidModel("mixture.experts", self.mixture.experts, fix)
        if not (self.attention == "block") <= self.block_length <= 1 << 16:
            raise InvalidModel("block_length", self.block_length, "blocks have 1 to 65536 tokens")
        for name in ("eos_tokens", "bos_token", "mask_token"):
            value = getattr(self, name)
            for token in value if isinstance(value, tuple) else (value,):
                if token is not None and not 0 <= token < self.vocab_size:
                    fix = f"the vocabulary has ids 0 to {self.vocab_size - 1}"
                    raise InvalidModel(name, token, fix)

    @property
    def canvas_length(self) -> int:
        """Number of positions that a model without a mask token denoises together; otherwise 0."""
        return 0 if self.gemma is None else self.gemma.canvas

    @property
    def writes(self) -> bool:
        """Whether the model can generate from left to right, and score texts."""
        return self.attention == "causal" and not self.canvas_length

    @property
    def said(self) -> int:
        """The number of rows of the LM head."""
        return self.outputs or self.vocab_size

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Return canonical name -> shape of every weight of this architecture, rows first.

        ``embed`` [V, D], ``head`` [V or ``outputs``, D] (absent when tied), ``norm`` [D], and for
        each layer ``layers.N.``: ``attn_norm`` [D], ``q`` [H*d, D], ``k`` and ``v`` [G*d, D], ``o``
        [D, H*d], ``mlp_norm`` [D], ``gate`` and ``up`` [F, D], ``down`` [D, F]; biases as
        ``q.bias`` ...; ``q_norm`` and ``k_norm`` [d]. Layers with experts have ``Mixture.tensors``
        instead of ``gate``, ``up`` and ``down``; Gemma 4's layers have both, and the tensors of
        :class:`Gemma`.
        """
        d, f = self.hidden_size, self.intermediate_size
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {"embed": (self.vocab_size, d), "norm": (d,)}
        if not self.tied_head:
            shapes["head"] = (self.said, d)
        if self.gemma is not None:
            shapes |= self.gemma.around(d, f)
        for index in range(self.layers):
            layer: dict[str, tuple[int, ...]] = {
                "attn_norm": (d,), "q": (q, d), "k": (kv, d), "v": (kv, d), "o": (d, q),
                "mlp_norm": (d,),
            }  # fmt: skip
            if self.gemma is not None:
                layer = self.gemma.attention(index, d, self.heads, self.head_dim, self.kv_heads)
                layer |= {"gate": (f, d), "up": (f, d), "down": (d, f)}
            if self.mixture is not None and index not in self.mixture.dense:
                layer |= self.mixture.tensors(d)
            elif self.gemma is None:
                layer |= {"gate": (f, d), "up": (f, d), "down": (d, f)}
            if self.qkv_bias:
                layer |= {"q.bias": (q,), "k.bias": (kv,), "v.bias": (kv,)}
            if self.output_bias:
                layer["o.bias"] = (d,)
            if self.mlp_bias:
                layer |= {"gate.bias": (f,), "up.bias": (f,), "down.bias": (d,)}
            if self.qk_norm:
                layer |= {"q_norm": (self.head_dim,), "k_norm": (self.head_dim,)}
            shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
        return shapes
