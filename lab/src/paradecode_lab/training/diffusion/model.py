"""The tiny models in PyTorch, for training on dense batches.

They are saved as Llama models, or as Granite's hybrids if some layers keep a state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from paradecode.core.errors import InvalidModel
from paradecode.models.config import ModelConfig, Rope, uniform
from paradecode.models.parts import Layer
from paradecode.models.recurrence import Recurrence
from paradecode.models.safetensors_dir import stored_name
from paradecode_lab.training.diffusion.mamba import Mamba2
from paradecode_lab.training.diffusion.vocabulary import END, MASK, PAD

CONTEXT = 256


def tiny_config(
    objective: str, vocab_size: int, hidden_size: int, layers: int, heads: int, inner: int,
    shift: bool = False, states: Collection[int] = (),
) -> ModelConfig:  # fmt: skip
    """Return the configuration of a tiny Llama model, or of a hybrid.

    Attention is full if the objective is ``diffusion``, and causal otherwise. The layers ``states``
    have heads of Mamba-2 in its place, twice as many. Two heads share keys, which are twice as
    large as those of attention.
    """
    diffusion = objective == "diffusion"
    llama = uniform(
        name=f"tiny-{objective}",
        architecture="llama",
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_dim=hidden_size // heads,
        intermediate_size=inner,
        context_length=CONTEXT,
        rope=Rope(dim=hidden_size // heads),
        tied_head=True,
        attention="full" if diffusion else "causal",
        mask_token=MASK if diffusion else None,
        shift=shift,
        eos_tokens=(END,),
    )
    if not states:
        return llama
    size = hidden_size // heads
    mixer = Recurrence(
        2 * heads, heads, 2 * size, size, width=4, tap_bias=True, skip=True, gate="before",
        out_norm="groups", norm_groups=heads,
    )  # fmt: skip
    stack = tuple(
        Layer((mixer, *layer.parts[1:])) if index in states else layer
        for index, layer in enumerate(llama.stack)
    )
    return replace(llama, name="tiny-hybrid", architecture="granitehybrid", stack=stack)


class TinyLayer(nn.Module):
    def __init__(self, config: ModelConfig, layer: Layer) -> None:
        super().__init__()
        c, d = config, config.hidden_size
        self.heads = c.heads
        self.attn_norm = nn.RMSNorm(d, c.norm_eps)
        self.mamba: Mamba2 | None = None
        if isinstance(layer.parts[0], Recurrence):
            self.mamba = Mamba2(layer.parts[0], d, c.norm_eps)
        else:
            self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.mlp_norm = nn.RMSNorm(d, c.norm_eps)
        self.gate = nn.Linear(d, c.intermediate_size, bias=False)
        self.up = nn.Linear(d, c.intermediate_size, bias=False)
        self.down = nn.Linear(c.intermediate_size, d, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, seen: Tensor | None) -> Tensor:
        """Compute one layer of the model: [B, T, D] -> [B, T, D]."""
        h = self.attn_norm(x)
        x = x + (self._attend(h, cos, sin, seen) if self.mamba is None else self.mamba(h))
        return x + self.feed(self.mlp_norm(x))

    def _attend(self, h: Tensor, cos: Tensor, sin: Tensor, seen: Tensor | None) -> Tensor:
        q, k, v = (
            m(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for m in (self.q, self.k, self.v)
        )
        mixed = _attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v, seen)
        out: Tensor = self.o(mixed.transpose(1, 2).flatten(2))
        return out

    def feed(self, h: Tensor) -> Tensor:
        """Compute the MLP: [B, T, D] -> [B, T, D]."""
        out: Tensor = self.down(F.silu(self.gate(h)) * self.up(h))
        return out


class TinyModel(nn.Module):
    """A Llama model or a hybrid for rows of equal length, without a cache.

    Args:
        config: a result of ``tiny_config``.
        seed: seed of the initial weights.
        layer: makes a layer.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self, config: ModelConfig, seed: int,
        layer: Callable[[ModelConfig, Layer], TinyLayer] = TinyLayer,
    ) -> None:  # fmt: skip
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(layer(config, own) for own in config.stack)
        self.norm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        angle = torch.arange(CONTEXT, dtype=torch.float64)[:, None] * torch.from_numpy(
            config.rope.inverse_frequencies()
        )
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if name.endswith(("o.weight", "out_proj.weight", "down.weight")):
                nn.init.zeros_(parameter)  # At first every layer is the identity.
            elif parameter.ndim == 2:
                spread = 0.04 if name == "embed.weight" else parameter.shape[1] ** -0.5
                nn.init.normal_(parameter, 0, spread, generator)
        for made in self.layers:
            if made.mamba is not None:
                made.mamba.draw(generator)

    @torch.no_grad()
    def set_alike(self, pairs: Sequence[tuple[int, int]], seed: int) -> None:
        """Make the embeddings of two tokens similar, for each pair of tokens.

        The first token's vector becomes the second one's plus a vector that all pairs share. The
        model then knows from the start that a word with a space before it is the same word.
        """
        first, second = torch.tensor(pairs, device=self.embed.weight.device).T
        shared = torch.randn(self.config.hidden_size, generator=torch.Generator().manual_seed(seed))
        vectors = self.embed.weight
        vectors[first] = vectors[second] + 0.04 * shared.to(vectors.device)

    def forward(
        self, tokens: Tensor, positions: Tensor | None = None, seen: Tensor | None = None
    ) -> Tensor:
        """Return the normed last states [B, T, D] of tokens int64 [B, T].

        Args:
            positions: int64 [T]; 0 to T - 1 by default.
            seen: bool [T, T]; entry (i, j) says that row i sees row j. The default is the model's
                attention.
        """
        x, length = self.embed(tokens), tokens.shape[1]
        if positions is None:
            positions = torch.arange(length, device=tokens.device)
        if seen is None and self.config.attention == "causal":
            seen = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        cos, sin = self.cos[positions], self.sin[positions]
        for layer in self.layers:
            x = layer(x, cos, sin, seen)
        return self.norm(x)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits, float32 [..., V], of hidden states [..., D]."""
        return F.linear(hidden, self.embed.weight).float()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate [B, H, T, d]: each element i with element i + d/2; angles are [T, d/2]."""
    a, b = x.chunk(2, -1)
    cos, sin = cos.to(x.dtype), sin.to(x.dtype)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def _attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None) -> Tensor:
    """Compute attention of [B, H, T, d] queries, keys and values.

    A query sees what ``seen`` [T, T] says, or everything. On a CPU, PyTorch's fused kernel takes
    six times as long for rows as short as these.
    """
    scores = ((q * q.shape[-1] ** -0.5) @ k.mT).float()
    if seen is not None:
        scores = scores.masked_fill(~seen, -torch.inf)
    return scores.softmax(-1).to(v.dtype) @ v


def load_weights(model: TinyModel, folder: Path) -> None:
    """Load the weights that ``save_model`` wrote for a Llama model.

    Layers with a state get the MLP of that model's layer, and keep their own mixer.

    Raises:
        InvalidModel: the folder has no such weights, or weights of another size.
    """
    try:
        stored = load_file(str(folder / "model.safetensors"))
        with torch.no_grad():
            for name, own in model.named_parameters():
                if ".mamba." in name:
                    continue
                read = stored[stored_name(name.removesuffix(".weight"))]
                if read.shape != own.shape:
                    raise ValueError(f"{name} is {list(read.shape)}, not {list(own.shape)}")
                own.copy_(torch.from_numpy(read.astype(np.float32)))
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        fix = f"name a folder with a tiny model of the same size ({error})"
        raise InvalidModel("start", str(folder), fix) from None


def save_model(model: TinyModel, folder: Path) -> None:
    """Write config.json and model.safetensors (float16) into a folder."""
    c = model.config
    numbers = {
        name.removesuffix(".weight"): tensor.detach().cpu().numpy().astype(np.float16)
        for name, tensor in model.state_dict().items()
    }
    stored = _hybrid(numbers) if c.keeps_states else {stored_name(n): t for n, t in numbers.items()}
    save_file(stored, str(folder / "model.safetensors"), {"format": "pt"})
    described = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": c.vocab_size,
        "hidden_size": c.hidden_size,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "intermediate_size": c.intermediate_size,
        "max_position_embeddings": c.context_length,
        "rms_norm_eps": c.norm_eps,
        "rope_theta": c.rope.theta,
        "tie_word_embeddings": c.tied_head,
        "torch_dtype": "float16",
        "eos_token_id": END,
        "pad_token_id": PAD,
    }
    if c.mask_token is not None:
        described |= {"attention": c.attention, "mask_token_id": c.mask_token, "shift": c.shift}
    if c.keeps_states:
        described |= _described(c)
    (folder / "config.json").write_text(json.dumps(described, indent=2) + "\n", "utf-8")


def _hybrid(numbers: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return a hybrid's tensors as Granite stores them."""
    stored = {}
    for name, tensor in numbers.items():
        place, _, part = name.rpartition(".")
        if ".mamba." in name:
            own = name.rpartition(".")[2] in ("in_proj", "conv1d", "norm", "out_proj")
            stored[f"model.{name}{'.weight' * own}"] = tensor
        elif part == "gate":
            joined = np.concatenate([tensor, numbers[f"{place}.up"]])
            stored[f"model.{place}.shared_mlp.input_linear.weight"] = joined
        elif part == "down":
            stored[f"model.{place}.shared_mlp.output_linear.weight"] = tensor
        elif part != "up":
            stored[stored_name(name)] = tensor
    return stored


def _described(c: ModelConfig) -> dict[str, Any]:
    """Return what Granite's config.json says of a hybrid beside Llama's facts."""
    part = next(part for layer in c.stack for part in layer.states if isinstance(part, Recurrence))
    return {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "layer_types": ["mamba" if layer.states else "attention" for layer in c.stack],
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": c.intermediate_size,
        "position_embedding_type": "rope",
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "attention_multiplier": c.head_dim**-0.5,
        "logits_scaling": 1.0,
        "mamba_n_heads": part.heads,
        "mamba_d_head": part.value_dim,
        "mamba_d_state": part.key_dim,
        "mamba_n_groups": part.key_heads,
        "mamba_d_conv": part.width,
        "mamba_expand": part.values // c.hidden_size,
    }
