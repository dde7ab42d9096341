"""Run an optimiser, and keep the weights that have the least validation loss."""

from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler

from paradecode_lab.training.decoding import Progress


def fit(
    rate: LRScheduler,
    loss: Callable[[], Tensor],
    steps: int,
    progress: Progress,
    *,
    clip: float = torch.inf,
    looks: Collection[int] = (),
    validate: Callable[[], float] = lambda: 0.0,
    patience: int | None = None,
) -> list[Tensor]:
    """Train the parameters of an optimiser, and return those for which ``validate`` was least.

    Args:
        rate: the learning rate schedule, which holds the optimiser.
        loss: draws a batch and returns its loss.
        steps: number of optimiser steps.
        progress: called after each step.
        clip: largest norm of all gradients together; longer gradients are scaled down to it.
        looks: ``validate`` is called after these numbers of steps.
        validate: returns the validation loss of the present weights.
        patience: training ends after this many calls of ``validate`` in a row without a new least
            value. None never ends it early.
    """
    optimizer, since, best, kept = rate.optimizer, 0, torch.inf, list[Tensor]()
    parameters = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    for done in range(steps + 1):
        if done in looks:
            with torch.no_grad():
                now = validate()
            since += 1
            if now < best or not kept:
                since, best, kept = 0, now, [tensor.detach().clone() for tensor in parameters]
            if since == patience:
                break
        if done == steps:
            break
        optimizer.zero_grad()
        loss().backward()
        torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        rate.step()
        progress(done + 1, steps)
    return kept
