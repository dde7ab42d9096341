"""A causal model with an adapter that is not merged, and forwards over several copies of a text."""

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
"""Of the mask token's first embedding, relative to the spread of the embeddings."""


class Adapted(Transformer):
    """The torch backend's arithmetic with LoRA beside the matrices.

    Args:
        config, weights: of the causal model.
        facts: of the adapter.
        adapter: its tensors; ask for gradients to train them.
    """

    def __init__(
        self, config: ModelConfig, weights: Weights, facts: Facts, adapter: Mapping[str, Tensor],
        dtype: torch.dtype, device: torch.device,
    ) -> None:  # fmt: skip
        super().__init__(config, weights, dtype, device)
        self.facts, self.adapter = facts, dict(adapter)

    def using(self, adapter: Mapping[str, Tensor]) -> Adapted:
        """Another adapter on the same weights; with an empty one, the causal model itself."""
        other = copy(self)
        other.adapter = dict(adapter)
        return other

    def embed(self, tokens: Tensor) -> Tensor:
        x = super().embed(tokens)
        if MASK not in self.adapter:
            return x
        return torch.where((tokens == self.facts.mask_token)[:, None], self.adapter[MASK], x)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        y = super()._linear(x, name)
        a = self.adapter.get(f"{name}.a")
        return y if a is None else y + F.linear(F.linear(x, a), self.adapter[f"{name}.b"])


def copies_seen(block: int, length: int, copies: int) -> Tensor:
    """bool [T, T], T = (copies + 1) * length: masked copies, and behind them the clean text.

    A masked copy sees its own block of itself and the clean blocks before it; the clean text sees
    its own block and those before it, as while decoding. (BD3-LM, arXiv 2503.09573, with one copy;
    Fast-dLLM v2, 2509.26328, stacks rows of two copies each. Here the clean text is computed once.)
    """
    column = torch.arange((copies + 1) * length)
    copy_of, block_of = column // length, column % length // block
    clean = copy_of == copies
    own = (copy_of[:, None] == copy_of) & (block_of[:, None] == block_of)
    return own | (clean & (block_of < block_of[:, None]))


def about(positions: Tensor, copy_of: Tensor, block: int, length: int, copies: int,
          shift: bool) -> Tensor:  # fmt: skip
    """The column whose logits are about each masked position of each copy, int64 [K].

    With shifted logits it is the one to the left; that of a block's first position belongs to the
    block before, which is finished by then: the clean text has it.
    """
    if not shift:
        return copy_of * length + positions
    first = positions % block == 0
    return torch.where(first, torch.full_like(copy_of, copies), copy_of) * length + positions - 1


def new_adapter(
    config: ModelConfig, weights: Weights, facts: Facts, seed: int, device: torch.device
) -> dict[str, Tensor]:
    """Float32 tensors that change nothing yet; the mask is the mean embedding with some noise."""
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
    """What a file holds, for :class:`Adapted`."""
    return {n: torch.from_numpy(t).to(device, dtype) for n, t in adapter.tensors.items()}


def rounded(facts: Facts, adapter: Mapping[str, Tensor]) -> Adapter:
    """The adapter as a file holds it."""
    tensors = {name: t.detach().cpu().numpy().astype(np.float16) for name, t in adapter.items()}
    return Adapter(facts, tensors)
