"""What a draft model expects next, in the target's token ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paradecode.core.logits import Logits, kept
from paradecode.core.noise import gumbel
from paradecode.core.sequence import Sequence
from paradecode.core.vocabulary import Vocabulary

POOL = 64
"""Best tokens of a draft distribution that are looked at when noise or a translation reorders."""


def candidates(
    seq: Sequence,
    logits: Logits,
    paths: list[list[int]],
    width: int,
    vocabulary: Vocabulary | None,
    shares_noise: bool = True,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """What a draft model expects after each path.

    Args:
        logits: one row for each path.
        paths: the draft tokens (in target ids) between the last committed token and the row.
        vocabulary: how the draft model's tokens correspond to the target's.
        shares_noise: add the noise of the target's own draw.

    Returns:
        int32 [F, W] its own ids, int32 [F, W] the target's ids, float64 [F, W] how likely each is
        to be the target's token, best first; 0 marks tokens that the target does not have.
    """
    sampler, noisy = seq.sampler, shares_noise and seq.sampler.warp.temperature > 0
    logits, vocabulary = penalisable(seq, logits, vocabulary)
    if vocabulary is None and not sampler.bare:
        biases = [sampler.bias(logits.select([row]), path) for row, path in enumerate(paths)]
        if any(bias is not None for bias in biases):
            logits = logits.with_bias(biases)
    if not noisy and vocabulary is None:
        own, values = logits.top_k(width)
        best = np.exp(logits.log_probability(own))
        best[~np.isfinite(values)] = 0.0
        return own, own, best
    rows, values = logits.top_k(POOL)
    scores = logits.log_probability(rows)
    own = rows if vocabulary is None else vocabulary.said(rows)
    ids = own if vocabulary is None else vocabulary.to_target[own]
    scores[(ids < 0) | ~np.isfinite(values)] = -np.inf
    if noisy:
        for row, path in enumerate(paths):
            scores[row] = _perturbed(seq, scores[row], ids[row], len(path))
        scores -= np.log(np.exp(scores - scores.max()).sum(axis=1, keepdims=True)) + scores.max()
    order = np.argsort(-scores, axis=1, kind="stable")[:, :width]
    best = np.exp(np.take_along_axis(scores, order, axis=1))
    return np.take_along_axis(own, order, axis=1), np.take_along_axis(ids, order, axis=1), best


def penalisable(
    seq: Sequence, logits: Logits, vocabulary: Vocabulary | None
) -> tuple[Logits, Vocabulary | None]:
    """Logits to which the target's penalties, bans and constraints can be added, where there are
    any and the draft model has the target's tokens; and how to read the ids of their columns."""
    if vocabulary is None or not vocabulary.same or seq.sampler.bare:
        return logits, vocabulary
    return vocabulary.widened(logits), None


def _perturbed(
    seq: Sequence, scores: NDArray[np.float64], ids: NDArray[np.int32], offset: int
) -> NDArray[np.float64]:
    """Scaled log-probabilities plus the target's noise; -inf for what the warp filters out."""
    perturbed = np.full(len(scores), -np.inf)
    if np.isfinite(scores).any():
        places, scaled = kept(scores, seq.sampler.warp)
        perturbed[places] = scaled + gumbel(seq.sampler.noise_key(offset), ids[places])
    return perturbed
