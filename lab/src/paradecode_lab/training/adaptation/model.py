"""A causal model with an adapter beside its weights, and the attention masks of its training."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from paradecode.backends.torch.model import Transformer
from paradecode.models.adapter import MASK, Adapter, Facts, adapter_shapes
from paradecode.models.config import ModelConfig
from paradecode.models.weights import Weights

NOISE = 0.1
"""Size of the noise in the mask token's initial embedding.

It is relative to the standard deviation of the embeddings.
"""


class Adapted(Transformer):
    """The torch backend's model with a LoRA beside each matrix.

    Args:
        config, weights: configuration and weights of the causal model.
        facts: facts of the adapter.
        adapter: tensors of the adapter; call ``requires_grad_`` on them to train them.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, facts: Facts, adapter: Mapping[str, Tensor],
        dtype: torch.dtype, device: torch.device,
    ) -> None:  # fmt: skip
        super().__init__(config, weights, dtype, device)
        self.facts, self.adapter = facts, dict(adapter)

    def using(self, adapter: Mapping[str, Tensor]) -> Adapted:
        """Return a model with the same weights and another adapter.

        An empty adapter gives the causal model itself.
        """
        other = copy(self)
        other.adapter = dict(adapter)
        return other

    def embed(self, tokens: Tensor) -> Tensor:
        x = super().embed(tokens)
        if MASK not in self.adapter:
            return x
        return torch.where((tokens == self.facts.mask_token)[:, None], self.adapter[MASK], x)

    def linear(self, x: Tensor, name: str) -> Tensor:
        y = super().linear(x, name)
        a = self.adapter.get(f"{name}.a")
        return y if a is None else y + F.linear(F.linear(x, a), self.adapter[f"{name}.b"])


def copies_seen(block: int, length: int, copies: int) -> Tensor:
    """Return bool [T, T], T = (copies + 1) * length; entry (i, j) says that column i sees column j.

    A row has masked copies of a text, and then the clean text. A masked position sees its own block
    of its copy, and the earlier blocks of the clean text. A clean position sees its own block and
    the earlier clean blocks, as in decoding. BD3-LM (arXiv 2503.09573) has one copy; Fast-dLLM v2
    (2509.26328) has rows of two copies. Here all copies share one clean text.
    """
    column = torch.arange((copies + 1) * length)
    copy_of, block_of = column // length, column % length // block
    clean = copy_of == copies
    own = (copy_of[:, None] == copy_of) & (block_of[:, None] == block_of)
    return own | (clean & (block_of < block_of[:, None]))


def about(positions: Tensor, copy_of: Tensor, block: int, length: int, copies: int,
          shift: bool) -> Tensor:  # fmt: skip
    """Return the column whose logits predict each masked position, int64 [K].

    With shifted logits it is the column to the left. For the first position of a block, that column
    is in the clean text, because the block before is finished when this one is decoded.

    Args:
        positions, copy_of: int64 [K], position and copy of each masked position.
    """
    if not shift:
        return copy_of * length + positions
    first = positions % block == 0
    return torch.where(first, torch.full_like(copy_of, copies), copy_of) * length + positions - 1


def new_adapter(
    config: ModelConfig, weights: Weights, facts: Facts, seed: int, device: torch.device
) -> dict[str, Tensor]:
    """Return the float32 tensors of a new adapter, which has no effect yet.

    The mask token's embedding is the mean embedding plus noise.
    """
    random, made = np.random.default_rng(seed), dict[str, Tensor]()
    for name, shape in adapter_shapes(config, facts.rank).items():
        values = random.standard_normal(shape) / np.sqrt(shape[-1])
        if name == MASK:
            table = weights["embed"].float32()
            values = table.mean(0) + NOISE * table.std() * random.standard_normal(shape)
        elif name.endswith(".b"):
            values = np.zeros(shape)
        made[name] = torch.from_numpy(values.astype(np.float32)).to(device)
    return made


def tensors_of(adapter: Adapter, dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
    """Return an adapter's tensors in PyTorch, for :class:`Adapted`."""
    return {n: torch.from_numpy(t).to(device, dtype) for n, t in adapter.tensors.items()}


def rounded(facts: Facts, adapter: Mapping[str, Tensor]) -> Adapter:
    """Return the adapter in float16, as it is stored in files."""
    tensors = {name: t.detach().cpu().numpy().astype(np.float16) for name, t in adapter.items()}
    return Adapter(facts, tensors)
