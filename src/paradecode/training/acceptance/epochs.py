"""Passes over samples with AdamW, for as long as the validation loss falls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paradecode.training.decoding import Progress

PATIENCE = 5
"""Epochs without a better validation loss after which a training ends."""


@dataclass(frozen=True, kw_only=True)
class Epochs:
    """How long to train, and how fast.

    Attributes:
        epochs: most passes over the samples; the one of least validation loss is kept.
        batch: samples a step.
        rate, decay: of AdamW; the rate falls to 0 along a cosine.
        seed: of all that is random, the split included.
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
    """The parameters after the epoch of least validation loss.

    Args:
        parameters: leaves that require gradients; they are changed.
        loss: of the samples with these numbers, int64 [n]; told whether it is trained on.
        train, validation: which samples, bool [N] each.
        generator: of the order.
    """
    optimizer = torch.optim.AdamW(parameters, settings.rate, weight_decay=settings.decay)
    rows, checked = (torch.from_numpy(np.flatnonzero(part)) for part in (train, validation))
    steps = settings.epochs * -(-len(rows) // settings.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    found, best, kept = 0, np.inf, [tensor.detach().clone() for tensor in parameters]
    for epoch in range(settings.epochs):
        order = rows[torch.randperm(len(rows), generator=generator)]
        for batch in order.split(settings.batch):
            optimizer.zero_grad()
            loss(batch, True).backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            now = float(loss(checked, False))
        if now < best:
            found, best, kept = epoch, now, [tensor.detach().clone() for tensor in parameters]
        progress(epoch + 1, settings.epochs)
        if epoch - found >= PATIENCE:
            break
    return kept
