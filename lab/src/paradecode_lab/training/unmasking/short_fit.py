"""R2-dLLM's fine-tuning: a masked diffusion model learns texts that it decodes quickly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from paradecode_lab.training.batched import BatchedModel
from paradecode_lab.training.unmasking.block_masks import (
    BlockSettings,
    Certainty,
    block_logits,
    certainty,
)
from paradecode_lab.training.unmasking.fine_tune import Rows, Run, TuneReport, fine_tune
from paradecode_lab.training.unmasking.trajectories import Trajectories


@dataclass(frozen=True)
class ShortReport(TuneReport[Certainty]):
    """Also the mean number of forwards that a text of the samples took."""

    forwards: float


def fit_short(
    model: BatchedModel, made: Trajectories, settings: BlockSettings, run: Run
) -> ShortReport:
    """Fine-tune all weights of ``model``.

    Raises:
        InvalidInput: if there are too few texts.
    """

    def loss(rows: Rows, random: np.random.Generator) -> Tensor:
        return F.cross_entropy(*block_logits(model, made, rows, settings.block, random))

    report = fine_tune(
        model.parameters, made, settings, loss,
        lambda held: certainty(model, made, held, settings), run,
    )  # fmt: skip
    return ShortReport(**vars(report), forwards=float((made.step.max(axis=1) + 1).mean()))
