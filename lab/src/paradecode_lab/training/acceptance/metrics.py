"""Measure the quality of predicted probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 10


@dataclass(frozen=True)
class Quality:
    """The quality of N predictions.

    Attributes:
        auc: chance that a random accepted token has a higher prediction than a random rejected one.
        calibration_error: mean of |predicted - observed| over ten bins of equal width, weighted by
            their sizes (ECE).
        log_loss: mean negative log-likelihood, in nats.
    """

    auc: float
    calibration_error: float
    log_loss: float


def quality(predicted: NDArray[np.floating], accepted: NDArray[np.floating]) -> Quality:
    """Compare predicted probabilities, float [N], with outcomes, float [N] of 1 or 0."""
    predicted = np.clip(predicted.astype(np.float64), 1e-6, 1 - 1e-6)
    bins = np.minimum((predicted * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, predicted - accepted, BINS)
    loss = -np.where(accepted > 0, np.log(predicted), np.log(1 - predicted)).mean()
    return Quality(auc(predicted, accepted), float(np.abs(gaps).sum() / len(bins)), float(loss))


def auc(predicted: NDArray[np.floating], accepted: NDArray[np.floating]) -> float:
    """Return the area under the ROC curve; ties count half.

    The result is NaN if all outcomes are equal.
    """
    _, place, counts = np.unique(predicted, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    positive = accepted > 0
    hits, misses = int(positive.sum()), int((~positive).sum())
    if not hits or not misses:
        return float("nan")
    return float((ranks[positive].sum() - hits * (hits + 1) / 2) / (hits * misses))


def split(prompt: NDArray[np.floating], seed: int) -> tuple[NDArray[np.bool_], ...]:
    """Split samples into training (70 %), validation and held out (15 % each).

    All samples of a conversation are in one part, unless there are fewer than three conversations.

    Args:
        prompt: [N], the conversation of each sample.

    Returns:
        Three masks, bool [N].
    """
    names = np.unique(prompt)
    if len(names) < 3:
        prompt = np.arange(len(prompt), dtype=np.float64)
        names = prompt
    order = np.random.default_rng(seed).permutation(len(names))
    share = max(1, round(0.15 * len(names)))
    held, validation = np.isin(prompt, names[order[:share]]), order[share : 2 * share]
    checked = np.isin(prompt, names[validation])
    return ~(held | checked), checked, held
