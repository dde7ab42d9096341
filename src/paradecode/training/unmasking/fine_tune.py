"""Fine-tuning all weights of a masked diffusion model on its own texts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR

from paradecode.core.errors import InvalidInput
from paradecode.training.acceptance.metrics import split
from paradecode.training.batched import BatchedModel
from paradecode.training.decoding import Progress
from paradecode.training.fitting import fit
from paradecode.training.unmasking.trajectories import Trajectories

FEWEST = 8
"""Texts below which nothing is learnt."""
RISE = 20
"""Steps in which the rate rises; then it falls to 0."""


def parts_of(made: Trajectories, seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which texts train, and which are held out.

    Raises:
        InvalidInput: if there are too few texts.
    """
    train, _, held = (np.flatnonzero(part) for part in split(np.arange(float(len(made))), seed))
    if len(train) < FEWEST:
        raise InvalidInput("samples", f"{len(made)} texts", f"log at least {2 * FEWEST}")
    return train, held


def fine_tune(
    model: BatchedModel,
    loss: Callable[[], Tensor],
    steps: int,
    rate: float,
    progress: Progress,
) -> None:
    """AdamW over all weights; ``loss`` draws a batch and gives its loss."""
    parameters = [weight.requires_grad_() for weight in model.parameters.values()]
    optimizer = torch.optim.AdamW(parameters, rate, weight_decay=0.0)
    factor = LambdaLR(optimizer, lambda step: min((step + 1) / RISE, 1.0 - step / steps))
    fit(factor, loss, steps, progress, clip=1.0)
    for weight in parameters:
        weight.requires_grad_(False)
