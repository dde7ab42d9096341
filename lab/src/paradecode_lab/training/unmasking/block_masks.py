"""Mask blocks in two complementary rows, and measure how sure a model is at the masks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paradecode_lab.training.batched import BatchedModel
from paradecode_lab.training.running import TuneSettings
from paradecode_lab.training.unmasking.fine_tune import Rows
from paradecode_lab.training.unmasking.trajectories import OUTSIDE, Trajectories, four_times

SURE = 0.8
"""Probability from which on a token counts as sure; the policy r2 has the same threshold."""


@dataclass(frozen=True, kw_only=True)
class BlockSettings(TuneSettings):
    """Settings of the training.

    Each text is masked in two ways, in blocks of ``block`` positions.
    """

    block: int = 32
    batch: int = 8


@dataclass(frozen=True)
class Certainty:
    """The confidence and the accuracy of a model at masked positions of held-out texts.

    Attributes:
        right: share of positions whose best token is that of the text.
        sure: share of positions whose best token is that of the text, with a probability of at
            least 0.8.
        entropy: mean entropy, in nats.
    """

    right: float
    sure: float
    entropy: float


def complementary(
    step: NDArray[np.float32], block: int, random: np.random.Generator, level: float | None = None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Draw which positions are masked, and which of the masked ones are trained on.

    Each text gives two rows for one of its blocks of ``block`` answer positions. A position of the
    block that is masked in one row is visible in the other, so every token of the block is trained
    on once. Earlier blocks are visible. Later blocks and undecided positions are masked.

    Args:
        step: [B, N], see :class:`Trajectories`.
        level: the share of the block that the first row masks; None draws it anew for each text.

    Returns:
        Two masks, bool [2B, N] each: masked positions, and positions trained on.
    """
    answer = step >= 0
    start = answer.argmax(axis=1)[:, None]
    number = np.where(answer, (np.arange(step.shape[1])[None] - start) // block, -1)
    turn = (random.random(len(step)) * (number.max(axis=1) + 1)).astype(np.int64)[:, None]
    inside = answer & (number == turn)
    share = random.random((len(step), 1)) if level is None else level
    one = inside & (random.random(step.shape) < share)
    later = (number > turn) | ~(answer | (step < -1))
    masked = np.concatenate([one | later, (inside & ~one) | later])
    return masked, np.concatenate([one, inside & ~one])


def block_logits(
    model: BatchedModel, made: Trajectories, rows: Rows, block: int, random: np.random.Generator,
    level: float | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return logits [K, V] for the masked positions of a block, and the right tokens [K]."""
    tokens, step = made.rows(rows)
    right = np.tile(tokens, (2, 1))
    masked, asked = complementary(step, block, random, level)
    shown = torch.from_numpy(np.where(masked, model.config.mask_token or 0, right))
    inside = torch.from_numpy(np.tile(step != OUTSIDE, (2, 1))).to(model.device)
    states = model.about(model.states(shown.to(model.device), inside))
    where = torch.from_numpy(asked).to(model.device)
    return model.logits(states[where]), torch.from_numpy(right[asked]).to(model.device)


def entropy(logits: Tensor) -> Tensor:
    """Return the entropy, in nats, of each row: [K, V] -> [K].

    A logit of minus infinity adds nothing to the entropy and gets no gradient.
    """
    known = logits.masked_fill(logits == -torch.inf, 0.0)
    return logits.logsumexp(-1) - (logits.softmax(-1) * known).sum(-1)


@torch.no_grad()
def certainty(
    model: BatchedModel, made: Trajectories, held: Rows, settings: BlockSettings
) -> Certainty:
    """Measure every held-out text four times; the masks are the same in each call."""
    random, sums = np.random.default_rng(0), np.zeros(4)
    for rows in four_times(held, settings.batch):
        logits, right = block_logits(model, made, rows, settings.block, random)
        best, tokens = logits.softmax(-1).max(-1)
        good = tokens == right
        sure = good & (best >= SURE)
        sums += len(right), int(good.sum()), int(sure.sum()), float(entropy(logits).sum())
    return Certainty(*(sums[1:] / max(sums[0], 1.0)).tolist())
