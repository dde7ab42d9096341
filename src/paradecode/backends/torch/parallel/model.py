"""A transformer whose weights are divided among ranks (Megatron-LM, arXiv 1909.08053)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.distributed.tensor import distribute_tensor as distribute

from paradecode.backends.torch.model import Transformer
from paradecode.core.errors import InvalidInput
from paradecode.models.config import ModelConfig
from paradecode.models.parts import Attention, Feed, Layer, Part
from paradecode.models.weights import Weights

BY_OUTPUT = {"embed", "head", "q", "k", "v", "gate", "up"}
BY_INPUT = {"o", "down"}


def placement(name: str) -> Placement:
    """Return how the ranks hold a weight: its rows divided, its columns divided, or replicated.

    In a pair of matrices the first is divided by its outputs and the second by its inputs. Such a
    pair needs one sum over the ranks, after the second matrix: before it, no rank needs the
    attention heads or inner MLP rows of another rank. ``embed`` and ``head`` are divided by token.
    """
    bias = name.endswith(".bias")
    part = name.removesuffix(".bias").rpartition(".")[2]
    if part in BY_OUTPUT:
        return Shard(0)
    return Shard(1) if part in BY_INPUT and not bias else Replicate()


def check_division(config: ModelConfig, ranks: int) -> None:
    """Raise InvalidInput if the ranks cannot hold equal parts of the model."""
    sizes = {"kv_heads": config.kv_heads, "intermediate_size": config.intermediate_size}
    if config.mixture is not None:
        sizes["mixture.expert_size"] = config.mixture.expert_size
        sizes["mixture.shared_size"] = config.mixture.shared_size
    for name, size in sizes.items():
        if size % ranks:
            raise InvalidInput("ranks", ranks, f"give a divisor of {name}, which is {size} here")
    if config.vocab_size < ranks:
        fix = f"the vocabulary has {config.vocab_size} tokens to divide"
        raise InvalidInput("ranks", ranks, fix)


def summed_late(layer: Layer, part: Part) -> bool:
    """Return whether the ranks sum what a part made while the next part runs.

    The next part of a ladder does not read it (arXiv 2501.06589). A norm reads the whole sum, so a
    part with a norm behind it, or between its MLP and its experts, is summed at once.
    """
    divided = isinstance(part, (Attention, Feed)) and part.norm in ("before", "none")
    both = isinstance(part, Feed) and part.size > 0 and part.mixture is not None
    return layer.ladder and divided and not both


class DividedTransformer(Transformer):
    """One rank's part of a divided model.

    All ranks make the same calls in the same order with the same tokens. Activations between layers
    are whole and equal on every rank; heads and inner MLP rows are divided. Weights come from the
    first rank; those of the other ranks are not read. Sums over ranks use the weights' dtype, so
    results differ from an undivided model by rounding. Behind a part that is :func:`summed_late`,
    the residual stream waits for the sum when it is first read.

    Args:
        mesh: a mesh with one dimension, on the type of ``device``.

    Raises:
        InvalidInput: the ranks do not divide the heads or an MLP.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        dtype: torch.dtype,
        device: torch.device,
        mesh: DeviceMesh,
    ) -> None:
        check_division(config, mesh.size())
        self.mesh, self._first = mesh, mesh.get_local_rank() == 0
        self._late = {
            f"layers.{index}.{name}"
            for index, layer in enumerate(config.stack)
            for part in layer.parts
            if summed_late(layer, part)
            for name in part.tensors(config.hidden_size)
        }
        super().__init__(config, weights, dtype, device)

    def placed(self, name: str, weights: Weights) -> Tensor:
        placed = distribute(super().placed(name, weights), self.mesh, [placement(name)])
        # Weights that a rank multiplies without communication are plain tensors.
        return placed if name in ("embed", "head") else placed.to_local()

    def cached(self, layer: int) -> tuple[int, int]:
        heads, size = super().cached(layer)
        return heads // self.mesh.size(), size

    def embed(self, tokens: Tensor) -> Tensor:
        """Look up the tokens that each rank holds; the sum over ranks is the embedding."""
        return self._whole(F.embedding(self._same(tokens), self.w["embed"]))

    def logits(self, x: Tensor) -> Tensor:
        """Compute the logits of each rank's tokens, and gather them."""
        head = self.w["embed" if self.config.tied_head else "head"]
        return self._whole(F.linear(self._same(self._norm(x, "norm")), head)).to(self.wide)

    def added(self, index: int, part: Part, x: Tensor, made: Tensor) -> Tensor:
        if not summed_late(self.config.stack[index], part):
            return super().added(index, part, x, made)
        if isinstance(x, AsyncCollectiveTensor):
            x = x.wait()  # On every rank: torch keeps a sum that nobody waits for.
        # The first rank adds the stream to its share, so that the sum is the new stream.
        return self.summed(x + made if self._first else made, late=True)

    def linear(self, x: Tensor, name: str) -> Tensor:
        if placement(name) != Shard(1):
            return super().linear(x, name)
        late, bias = name in self._late, self.w.get(name + ".bias")
        share = F.linear(x, self.w[name])
        made = share if late else self.summed(share)
        # The bias belongs to the whole sum, or to the first rank's share.
        return made if bias is None or (late and not self._first) else made + bias

    def summed(self, share: Tensor, late: bool = False) -> Tensor:
        """Return the sum of the ranks' shares; a late one runs until it is first read."""
        shares = DTensor.from_local(share, self.mesh, [Partial()], run_check=False)
        return shares.redistribute(placements=[Replicate()], async_op=late).to_local()

    def _same(self, x: Tensor) -> DTensor:
        return DTensor.from_local(x, self.mesh, [Replicate()], run_check=False)

    def _whole(self, x: Tensor) -> Tensor:
        assert isinstance(x, DTensor)
        return x.full_tensor()
