"""R2-dLLM's fine-tuning: a masked diffusion model learns texts that it decodes quickly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode.training.batched import BatchedModel
from paradecode.training.decoding import Progress
from paradecode.training.unmasking.fine_tune import TuneReport, TuneSettings, fine_tune
from paradecode.training.unmasking.trajectories import OUTSIDE, Trajectories, four_times

SURE = 0.8
"""Probability from which a token counts as sure; the policy r2 has the same threshold."""


@dataclass(frozen=True, kw_only=True)
class ShortSettings(TuneSettings):
    """How to train; each text is masked in two ways, in blocks of ``block`` positions."""

    block: int = 32
    batch: int = 8


@dataclass(frozen=True)
class Certainty:
    """Shares of the masked positions of held-out texts.

    Attributes:
        right: the best token is that of the text.
        sure: it also has a probability of at least 0.8.
    """

    right: float
    sure: float


@dataclass(frozen=True)
class ShortReport(TuneReport[Certainty]):
    """Also the mean number of forwards that a text of the samples took."""

    forwards: float


def fit_short(
    model: BatchedModel, made: Trajectories, settings: ShortSettings, progress: Progress
) -> ShortReport:
    """Fine-tune all weights of ``model``.

    Raises:
        InvalidInput: if there are too few texts.
    """

    def loss(rows: NDArray[np.integer], random: np.random.Generator) -> Tensor:
        return F.cross_entropy(*_asked(model, made, rows, settings.block, random))

    report = fine_tune(
        model, made, settings, loss, lambda held: _measured(model, made, held, settings), progress
    )
    return ShortReport(**vars(report), forwards=float((made.step.max(axis=1) + 1).mean()))


def complementary(
    step: NDArray[np.float32], block: int, random: np.random.Generator
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which positions are masked, and which of those are trained on; bool [2B, N] each.

    Each text gives two rows for one of its blocks of ``block`` answer positions. A position of the
    block that is masked in one row is visible in the other, so every token of the block is trained
    on once. Earlier blocks are visible. Later blocks and undecided positions are masked.

    Args:
        step: [B, N], as in :class:`Trajectories`.
    """
    answer = step >= 0
    start = answer.argmax(axis=1)[:, None]
    number = np.where(answer, (np.arange(step.shape[1])[None] - start) // block, -1)
    turn = (random.random(len(step)) * (number.max(axis=1) + 1)).astype(np.int64)[:, None]
    inside = answer & (number == turn)
    level = random.random((len(step), 1))
    one = inside & (random.random(step.shape) < level)
    later = (number > turn) | ~(answer | (step < -1))
    masked = np.concatenate([one | later, (inside & ~one) | later])
    return masked, np.concatenate([one, inside & ~one])


def _asked(
    model: BatchedModel,
    made: Trajectories,
    rows: NDArray[np.integer],
    block: int,
    random: np.random.Generator,
) -> tuple[Tensor, Tensor]:
    """Logits [K, V] for the masked positions of a block, and the right tokens [K]."""
    tokens, step = made.rows(rows)
    right = np.tile(tokens, (2, 1))
    masked, asked = complementary(step, block, random)
    shown = torch.from_numpy(np.where(masked, model.config.mask_token or 0, right))
    inside = torch.from_numpy(np.tile(step != OUTSIDE, (2, 1))).to(model.device)
    states = model.about(model.states(shown.to(model.device), inside))
    where = torch.from_numpy(asked).to(model.device)
    return model.logits(states[where]), torch.from_numpy(right[asked]).to(model.device)


@torch.no_grad()
def _measured(
    model: BatchedModel, made: Trajectories, held: NDArray[np.integer], settings: ShortSettings
) -> Certainty:
    """Measure every held-out text four times; the masks are the same in each call."""
    random, counts = np.random.default_rng(0), np.zeros(3)
    for rows in four_times(held, settings.batch):
        logits, right = _asked(model, made, rows, settings.block, random)
        best, tokens = logits.softmax(-1).max(-1)
        good = tokens == right
        counts += len(right), int(good.sum()), int((good & (best >= SURE)).sum())
    return Certainty(*(counts[1:] / max(counts[0], 1.0)).tolist())
