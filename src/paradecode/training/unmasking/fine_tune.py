"""Fine-tuning all weights of a masked diffusion model on its own texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

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
"""Least number of training texts."""
RISE = 20
"""Number of steps in which the learning rate rises; after them it falls to 0."""
Figures = TypeVar("Figures")


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """How to train.

    Attributes:
        steps: of the optimiser, with ``batch`` texts each.
        rate: learning rate of AdamW; it rises for 20 steps and then falls to 0.
        seed: of the split and the masks.
    """

    steps: int = 400
    batch: int = 16
    rate: float = 1e-4
    seed: int = 0


@dataclass(frozen=True)
class TuneReport(Generic[Figures]):
    """Figures of held-out texts, before and after the training.

    Attributes:
        training, held_out: numbers of texts.
    """

    training: int
    held_out: int
    before: Figures
    after: Figures


def fine_tune(
    model: BatchedModel,
    made: Trajectories,
    settings: TuneSettings,
    loss: Callable[[NDArray[np.integer], np.random.Generator], Tensor],
    measure: Callable[[NDArray[np.integer]], Figures],
    progress: Progress,
) -> TuneReport[Figures]:
    """Train all weights with AdamW; equal arguments give equal weights on one machine.

    Args:
        loss: called with rows of ``made`` and the generator that draws the masks.
        measure: called with the held-out rows; returns their figures.

    Raises:
        InvalidInput: if there are too few texts.
    """
    parts = split(np.arange(float(len(made))), settings.seed)
    train, _, held = (np.flatnonzero(part) for part in parts)
    if len(train) < FEWEST:
        raise InvalidInput("samples", f"{len(made)} texts", f"log at least {2 * FEWEST}")
    before, random = measure(held), np.random.default_rng(settings.seed)
    parameters = [weight.requires_grad_() for weight in model.parameters.values()]
    optimizer = torch.optim.AdamW(parameters, settings.rate, weight_decay=0.0)
    steps = settings.steps
    rate = LambdaLR(optimizer, lambda step: min((step + 1) / RISE, 1.0 - step / steps))

    def drawn() -> Tensor:
        return loss(random.choice(train, settings.batch), random)

    fit(rate, drawn, steps, progress, clip=1.0)
    for weight in parameters:
        weight.requires_grad_(False)
    return TuneReport(len(train), len(held), before, measure(held))
