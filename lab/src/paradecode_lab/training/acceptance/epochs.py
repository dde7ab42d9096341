"""Train on samples with AdamW for as long as the validation loss falls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim.lr_scheduler import CosineAnnealingLR

from paradecode_lab.training.decoding import Progress
from paradecode_lab.training.fitting import fit

PATIENCE = 5
"""Training ends after this many epochs in a row without a new least validation loss."""


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """Settings of a training in epochs.

    Attributes:
        epochs: the most passes over the samples; the weights with the least validation loss are
            kept.
        batch: number of samples in a step.
        rate, decay: learning rate and weight decay of AdamW; the rate falls to 0 along a cosine.
        seed: seed of everything that is random, also of the split.
    """

    epochs: int = 20
    batch: int = 64
    rate: float = 1e-3
    decay: float = 0.1
    seed: int = 0


def least_loss(
    parameters: Sequence[Tensor],
    loss: Callable[[Tensor, bool], Tensor],
    train: NDArray[np.bool_],
    validation: NDArray[np.bool_],
    settings: Epochs,
    generator: torch.Generator,
    progress: Progress,
) -> list[Tensor]:
    """Train, and return the parameters after the epoch with the least validation loss.

    Args:
        parameters: tensors that require gradients; they are changed.
        loss: called with indices of samples, int64 [n], and whether this is a training step.
        train, validation: bool [N] each, the samples that are trained on, and those that validate.
        settings: settings of the training.
        generator: draws the order of the samples.
        progress: called after each step.
    """
    rows, checked = (torch.from_numpy(np.flatnonzero(part)) for part in (train, validation))
    passes = -(-len(rows) // settings.batch)
    steps = settings.epochs * passes

    def batches() -> Iterator[Tensor]:
        while True:
            yield from rows[torch.randperm(len(rows), generator=generator)].split(settings.batch)

    drawn = batches()
    optimizer = torch.optim.AdamW(parameters, settings.rate, weight_decay=settings.decay)
    return fit(
        CosineAnnealingLR(optimizer, steps), lambda: loss(next(drawn), True), steps, progress,
        looks=range(passes, steps + 1, passes), patience=PATIENCE,
        validate=lambda: float(loss(checked, False)),
    )  # fmt: skip
