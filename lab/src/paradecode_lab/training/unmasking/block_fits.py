"""Fine-tune a masked diffusion model by blocks, so that it decides many tokens at once.

The methods are dParallel's certainty forcing, and R2-dLLM's training on texts that the model
decodes quickly.
"""

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
    entropy,
)
from paradecode_lab.training.unmasking.fine_tune import Rows, Run, TuneReport, fine_tune
from paradecode_lab.training.unmasking.trajectories import Trajectories

LEVEL = 0.5
"""Share of a block's positions that the first row of a text masks."""
TEMPERATURE = 0.5
"""Temperature of the distributions whose entropy is the loss."""


@dataclass(frozen=True, kw_only=True)
class CertaintySettings(BlockSettings):
    """Settings of the training; ``weight`` is the weight of the entropy in the loss."""

    weight: float = 2.0


def fit_certainty(
    model: BatchedModel, made: Trajectories, settings: CertaintySettings, run: Run
) -> TuneReport[Certainty]:
    """Fine-tune all weights of ``model`` on texts that it wrote with one token a forward.

    Raises:
        InvalidInput: if there are too few texts.
    """

    def loss(rows: Rows, random: np.random.Generator) -> Tensor:
        logits, right = block_logits(model, made, rows, settings.block, random, LEVEL)
        return forced(logits, right, settings.weight)

    return fine_tune(
        model.parameters, made, settings, loss,
        lambda held: certainty(model, made, held, settings), run,
    )  # fmt: skip


def forced(logits: Tensor, right: Tensor, weight: float) -> Tensor:
    """Return the mean cross-entropy, plus ``weight`` times the mean entropy of right predictions.

    The model thus becomes surer only where its best token is already right (dParallel, Chen et al.
    2025, arXiv 2509.26488).

    Args:
        logits: [K, V].
        right: int64 [K], the right tokens.
    """
    loss = F.cross_entropy(logits, right)
    good = logits.argmax(-1) == right
    if weight > 0 and good.any():
        loss = loss + weight * entropy(logits[good] / TEMPERATURE).mean()
    return loss


@dataclass(frozen=True)
class ShortReport(TuneReport[Certainty]):
    """Report that also has the mean number of forwards that a text of the samples took."""

    forwards: float


def fit_short(
    model: BatchedModel, made: Trajectories, settings: BlockSettings, run: Run
) -> ShortReport:
    """Fine-tune all weights of ``model`` on texts that it decoded in few forwards.

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
