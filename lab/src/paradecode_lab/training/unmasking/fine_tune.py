"""Fine-tuning weights of a model on its own texts; it can be stopped and continued."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paradecode.core.errors import InvalidInput
from paradecode_lab.training.acceptance.metrics import split
from paradecode_lab.training.running import Training, go_on
from paradecode_lab.training.samples import Samples

FEWEST = 8
"""The least number of training texts."""
RISE = 20
"""Number of steps in which the learning rate rises; after them it falls to 0."""
Figures = TypeVar("Figures")
Rows = NDArray[np.integer]


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """Settings of the training.

    Attributes:
        steps: number of optimiser steps, with ``batch`` texts each.
        rate: learning rate of AdamW; it rises for 20 steps and then falls to 0.
        seed: seed of the split and the masks.
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


class FineTuning(Training):
    """Weights that AdamW trains; equal arguments give equal weights on one machine.

    Args:
        parameters: name -> weight.
        texts: a digest of the training texts.
        loss: called with the generator of a step, which draws texts and masks.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], settings: TuneSettings, texts: str,
        loss: Callable[[np.random.Generator], Tensor],
    ) -> None:  # fmt: skip
        self.steps, self._settings, self._loss = settings.steps, settings, loss
        self._facts = {"objective": type(settings).__name__, **asdict(settings), "texts": texts}
        self._parameters = dict(parameters)
        trained = [weight.requires_grad_() for weight in parameters.values()]
        self._optimizer = torch.optim.AdamW(trained, settings.rate, weight_decay=0.0)

    def advance(self) -> float:
        settings, step = self._settings, self.step
        loss = self._loss(np.random.default_rng((settings.seed, step)))
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(list(self._parameters.values()), 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = settings.rate * min((step + 1) / RISE, 1.0 - step / self.steps)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item()

    def state(self) -> dict[str, Any]:
        return {
            "facts": self._facts, "step": self.step, "weights": self._parameters,
            "optimizer": self._optimizer.state_dict(),
        }  # fmt: skip

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint of the same settings, model and texts.

        Raises:
            InvalidModel: the file is damaged.
            InvalidInput: it belongs to another run.
        """
        go_on(self, path, self._facts, self._parameters, self._optimizer)


Run = Callable[[FineTuning], None]
"""Does the remaining steps of a training; an exception leaves it unfinished."""


def fine_tune(
    parameters: Mapping[str, Tensor],
    made: Samples,
    settings: TuneSettings,
    loss: Callable[[Rows, np.random.Generator], Tensor],
    measure: Callable[[Rows], Figures],
    run: Run,
) -> TuneReport[Figures]:
    """Train weights on some of the texts, and measure the others before and after it.

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
    before = measure(held)
    run(
        FineTuning(
            parameters, settings, made.content(),
            lambda random: loss(random.choice(train, settings.batch), random),
        )
    )  # fmt: skip
    for weight in parameters.values():
        weight.requires_grad_(False)
    return TuneReport(len(train), len(held), before, measure(held))
