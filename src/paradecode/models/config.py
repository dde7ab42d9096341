"""An architecture is data: one record describes every Llama-family model."""

from __future__ import annotations

from dataclasses import dataclass, field

from paradecode.core.errors import InvalidModel


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding, always in the half-split layout (element i pairs with i + d/2).

    Attributes:
        theta: base of the wavelengths.
        dim: how many leading dimensions of a head are rotated (partial rotary when < head_dim).
        scaling: ``none``, ``linear``, ``llama3`` or ``yarn``.
        factor, low_freq_factor, high_freq_factor, original_context: of the scaling in use.
        attention_factor: cosines and sines are multiplied by it (yarn).
        beta_fast, beta_slow: yarn's correction range, in rotations.
    """

    theta: float = 10000.0
    dim: int = 64
    scaling: str = "none"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_context: int = 8192
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0


@dataclass(frozen=True)
class ModelConfig:
    """Shapes and facts of a decoder-only transformer with RMSNorm, rotary positions and SwiGLU.

    Attributes:
        name: what users call the model.
        architecture: family, for messages (``llama``, ``qwen2``, ...).
        vocab_size, hidden_size, layers, heads, kv_heads, head_dim, intermediate_size: shapes.
        context_length: largest number of positions.
        norm_eps: epsilon of every RMSNorm.
        rope: rotary parameters.
        tied_head: the LM head is the embedding matrix.
        qkv_bias, output_bias, mlp_bias: which projections have a bias.
        qk_norm: RMSNorm over each head of queries and keys (Qwen3).
        sliding_window: each row sees only this many positions, itself included; 0 is off.
        attention: ``causal``, ``full`` or ``block`` (masked-diffusion models), with ``block_length``.
        mask_token: id of the mask of a diffusion model, or None.
        shift: a diffusion model whose logits at i predict token i + 1.
        bos_token: id or None; ``add_bos`` says whether prompts start with it.
        eos_tokens: ids that end a text.
    """

    name: str
    architecture: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    context_length: int = 2048
    norm_eps: float = 1e-5
    rope: Rope = field(default_factory=Rope)
    tied_head: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    sliding_window: int = 0
    attention: str = "causal"
    block_length: int = 0
    mask_token: int | None = None
    shift: bool = False
    bos_token: int | None = None
    add_bos: bool = False
    eos_tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        limits = {
            "vocab_size": 1 << 21, "hidden_size": 1 << 16, "layers": 1024, "heads": 1024,
            "kv_heads": 1024, "head_dim": 1024, "intermediate_size": 1 << 20,
            "context_length": 1 << 24,
        }  # fmt: skip
        for name, high in limits.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= high:
                raise InvalidModel(name, value, f"the model needs a whole number from 1 to {high}")
        if self.heads % self.kv_heads:
            raise InvalidModel("kv_heads", self.kv_heads, f"it must divide heads ({self.heads})")
        if not 2 <= self.rope.dim <= self.head_dim or self.rope.dim % 2:
            raise InvalidModel(
                "rope.dim", self.rope.dim, f"give an even number up to head_dim ({self.head_dim})"
            )
        if not (0 < self.norm_eps < 1) or not (0 < self.rope.theta < 1e12):
            raise InvalidModel(
                "norm_eps, rope.theta", (self.norm_eps, self.rope.theta), "give positive numbers"
            )
        if self.rope.scaling not in ("none", "linear", "llama3", "yarn"):
            raise InvalidModel(
                "rope.scaling", self.rope.scaling, "use none, linear, llama3 or yarn"
            )

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Canonical name -> shape of every weight this architecture has, rows first.

        ``embed`` [V, D], ``head`` [V, D] (absent when tied), ``norm`` [D], and for each layer
        ``layers.N.``: ``attn_norm`` [D], ``q`` [H*d, D], ``k`` and ``v`` [G*d, D], ``o`` [D, H*d],
        ``mlp_norm`` [D], ``gate`` and ``up`` [F, D], ``down`` [D, F]; biases as ``q.bias`` ...;
        ``q_norm`` and ``k_norm`` [d].
        """
        d, q, kv, f = (
            self.hidden_size,
            self.heads * self.head_dim,
            self.kv_heads * self.head_dim,
            self.intermediate_size,
        )
        shapes: dict[str, tuple[int, ...]] = {"embed": (self.vocab_size, d), "norm": (d,)}
        if not self.tied_head:
            shapes["head"] = (self.vocab_size, d)
        for index in range(self.layers):
            layer: dict[str, tuple[int, ...]] = {
                "attn_norm": (d,), "q": (q, d), "k": (kv, d), "v": (kv, d), "o": (d, q),
                "mlp_norm": (d,), "gate": (f, d), "up": (f, d), "down": (d, f),
            }  # fmt: skip
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
