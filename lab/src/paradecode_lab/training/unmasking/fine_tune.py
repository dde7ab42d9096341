"""Fine-tune a model on its own texts. The training can be stopped and continued."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from paradecode.core.errors import InvalidInput
from paradecode_lab.training.acceptance.metrics import split
from paradecode_lab.training.running import TuneSettings, WeightTraining
from paradecode_lab.training.samples import Samples

FEWEST = 8
"""The least number of training texts."""
Figures = TypeVar("Figures")
Rows = NDArray[np.integer]


@dataclass(frozen=True)
class TuneReport(Generic[Figures]):
    """Measurements on held-out texts, before and after the training.

    Attributes:
        training, held_out: numbers of texts.
        before, after: what was measured.
    """

    training: int
    held_out: int
    before: Figures
    after: Figures


class FineTuning(WeightTraining):
    """A training that continues from a model's present weights.

    Args:
        parameters: name -> weight.
        settings: settings of the training.
        texts: a digest of the training texts.
        loss: called with the random generator of a step, which draws texts and masks.
    """

    def __init__(
        self, parameters: Mapping[str, Tensor], settings: TuneSettings, texts: str,
        loss: Callable[[np.random.Generator], Tensor],
    ) -> None:  # fmt: skip
        facts = {"objective": type(settings).__name__, **asdict(settings), "texts": texts}
        super().__init__(parameters, settings, facts)
        self._loss = loss

    def losses(self, random: np.random.Generator) -> Iterator[Tensor]:
        yield self._loss(random)


Run = Callable[[FineTuning], None]
"""A function that does the remaining steps of a training; an exception leaves it unfinished."""


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
        parameters: name -> weight; the weights are changed.
        made: the texts.
        settings: settings of the training.
        loss: called with rows of ``made`` and the generator that draws the masks.
        measure: called with the held-out rows; returns the measurements.
        run: does the steps.

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
