"""ReDiff's objective: a masked diffusion model learns to correct tokens that it can see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode_lab.training.batched import BatchedModel
from paradecode_lab.training.running import TuneSettings
from paradecode_lab.training.unmasking.fine_tune import Run, TuneReport, fine_tune
from paradecode_lab.training.unmasking.trajectories import MASKED, OUTSIDE, Trajectories, four_times


@dataclass(frozen=True)
class RefineSettings(TuneSettings):
    """Settings of the training.

    Attributes:
        corrupted: share of an answer's visible tokens that are replaced (0.05 in the paper).
        own: share of the replaced tokens that become the model's own mistake in one parallel
            forward, if it makes one there; the others become random tokens. This replaces the
            paper's second stage, in which another model marks the mistakes of drafts.
    """

    corrupted: float = 0.05
    own: float = 0.5


@dataclass(frozen=True)
class Shares:
    """Shares of held-out positions at which the model predicts the right token.

    Attributes:
        masked: share of the masked positions.
        corrected: share of the visible positions with a wrong token.
        kept: share of the visible positions with the right token.
    """

    masked: float
    corrected: float
    kept: float


@dataclass(frozen=True, eq=False)
class Batch:
    """Canvases [B, T], their right tokens, and masks [B, T] of the different kinds of positions.

    Attributes:
        tokens, right: int64, the canvas that the model sees, and the right tokens.
        inside: bool, true for positions of the canvas and false for padding.
        masked, corrupted, kept: bool, answer positions that are masked, replaced by a wrong token,
            or unchanged.
    """

    tokens: Tensor
    right: Tensor
    inside: Tensor
    masked: Tensor
    corrupted: Tensor
    kept: Tensor


def fit_corrections(
    model: BatchedModel, made: Trajectories, settings: RefineSettings, run: Run
) -> TuneReport[Shares]:
    """Fine-tune all weights of ``model``.

    The loss is that of the paper's first stage: the mean cross-entropy at masked positions, plus
    the mean at corrupted ones, plus the mean at unchanged visible ones. The paper's factor 1/t is
    left out; its authors doubt it themselves. The right tokens are those that the model wrote with
    one token a forward.

    Raises:
        InvalidInput: if there are too few texts.
    """
    return fine_tune(
        model.parameters, made, settings,
        lambda rows, random: loss(model, corrupt(model, made, rows, settings, random)),
        lambda held: _measured(model, made, held, settings), run,
    )  # fmt: skip


def corrupt(
    model: BatchedModel,
    made: Trajectories,
    rows: NDArray[np.integer],
    settings: RefineSettings,
    random: np.random.Generator,
) -> Batch:
    """Mask a random share of each answer, and replace some of its visible tokens."""
    right, step = made.rows(rows)
    mask_token = model.config.mask_token
    assert mask_token is not None
    answer = step >= 0
    levels = (random.random() + random.permutation(len(rows)) / len(rows)) % 1
    masked = answer & (random.random(step.shape) < levels[:, None])
    corrupted = answer & ~masked & (random.random(step.shape) < settings.corrupted)
    unknown = masked | (step == MASKED)
    inside = torch.from_numpy(step != OUTSIDE).to(model.device)
    wrong = random.integers(0, model.config.vocab_size - 1, step.shape)
    wrong += wrong >= mask_token
    if settings.own > 0:
        empty = torch.from_numpy(np.where(unknown | corrupted, mask_token, right))
        with torch.no_grad():
            states = model.about(model.states(empty.to(model.device), inside))
            guesses = model.logits(states).argmax(-1).cpu().numpy()
        own = (random.random(step.shape) < settings.own) & (guesses != right)
        wrong = np.where(own, guesses, wrong)
    corrupted &= wrong != right
    tokens = np.where(unknown, mask_token, np.where(corrupted, wrong, right))
    parts = (tokens, right, step != OUTSIDE, masked, corrupted, answer & ~masked & ~corrupted)
    return Batch(*(torch.from_numpy(part).to(model.device) for part in parts))


def loss(model: BatchedModel, batch: Batch) -> Tensor:
    """Return the sum of the mean cross-entropies of masked, corrupted and kept positions."""
    states = model.about(model.states(batch.tokens, batch.inside))
    total = states.new_zeros(())
    for kind in (batch.masked, batch.corrupted, batch.kept):
        if kind.any():
            total = total + F.cross_entropy(model.logits(states[kind]), batch.right[kind])
    return total


@torch.no_grad()
def _measured(
    model: BatchedModel, made: Trajectories, held: NDArray[np.integer], settings: RefineSettings
) -> Shares:
    """Measure every held-out text four times; masks and mistakes are the same in each call."""
    random, counts = np.random.default_rng(0), np.zeros((2, 3))
    settings = RefineSettings(corrupted=max(0.1, settings.corrupted), own=0.0)
    for rows in four_times(held, settings.batch):
        batch = corrupt(model, made, rows, settings, random)
        states = model.about(model.states(batch.tokens, batch.inside))
        good = model.logits(states).argmax(-1) == batch.right
        for column, kind in enumerate((batch.masked, batch.corrupted, batch.kept)):
            counts[:, column] += float((good & kind).sum()), float(kind.sum())
    return Shares(*(counts[0] / np.maximum(counts[1], 1.0)).tolist())
