"""The tiny models in PyTorch, for training on dense batches; they are saved as Llama models."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from paradecode.core.errors import InvalidModel
from paradecode.models.config import ModelConfig, Rope, uniform
from paradecode.models.safetensors_dir import stored_name
from paradecode_lab.training.diffusion.vocabulary import END, MASK, PAD

CONTEXT = 256


def tiny_config(
    objective: str, vocab_size: int, hidden_size: int, layers: int, heads: int, inner: int,
    shift: bool = False,
) -> ModelConfig:  # fmt: skip
    """Return the configuration of a tiny Llama model.

    Attention is full if the objective is ``diffusion``, and causal otherwise.
    """
    diffusion = objective == "diffusion"
    return uniform(
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


class TinyLayer(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        c, d = config, config.hidden_size
        self.heads = c.heads
        self.attn_norm = nn.RMSNorm(d, c.norm_eps)
        self.q, self.k, self.v, self.o = (nn.Linear(d, d, bias=False) for _ in range(4))
        self.mlp_norm = nn.RMSNorm(d, c.norm_eps)
        self.gate = nn.Linear(d, c.intermediate_size, bias=False)
        self.up = nn.Linear(d, c.intermediate_size, bias=False)
        self.down = nn.Linear(c.intermediate_size, d, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, seen: Tensor | None) -> Tensor:
        """Compute one layer of the model: [B, T, D] -> [B, T, D]."""
        h = self.attn_norm(x)
        q, k, v = (
            m(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for m in (self.q, self.k, self.v)
        )
        mixed = _attention(_rotate(q, cos, sin), _rotate(k, cos, sin), v, seen)
        x = x + self.o(mixed.transpose(1, 2).flatten(2))
        return x + self.feed(self.mlp_norm(x))

    def feed(self, h: Tensor) -> Tensor:
        """Compute the MLP: [B, T, D] -> [B, T, D]."""
        out: Tensor = self.down(F.silu(self.gate(h)) * self.up(h))
        return out


class TinyModel(nn.Module):
    """A Llama model for rows of equal length, without a K/V cache.

    Args:
        config: a result of ``tiny_config``.
        seed: seed of the initial weights.
        layer: makes a layer.
    """

    cos: Tensor
    sin: Tensor

    def __init__(
        self, config: ModelConfig, seed: int, layer: Callable[[ModelConfig], TinyLayer] = TinyLayer
    ) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(layer(config) for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.hidden_size, config.norm_eps)
        angle = torch.arange(CONTEXT, dtype=torch.float64)[:, None] * torch.from_numpy(
            config.rope.inverse_frequencies()
        )
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in self.named_parameters():
            if name.endswith(("o.weight", "down.weight")):
                nn.init.zeros_(parameter)  # At first every layer is the identity.
            elif parameter.ndim == 2:
                spread = 0.04 if name == "embed.weight" else parameter.shape[1] ** -0.5
                nn.init.normal_(parameter, 0, spread, generator)

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
    """Load the weights that ``save_model`` wrote.

    Raises:
        InvalidModel: the folder has no such weights, or weights of another size.
    """
    try:
        stored = load_file(str(folder / "model.safetensors"))
        with torch.no_grad():
            for name, own in model.named_parameters():
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
    stored = {
        stored_name(name.removesuffix(".weight")): tensor.detach().cpu().numpy().astype(np.float16)
        for name, tensor in model.state_dict().items()
    }
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
    (folder / "config.json").write_text(json.dumps(described, indent=2) + "\n", "utf-8")
