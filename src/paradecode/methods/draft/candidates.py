"""The tokens that a draft model expects next, in the target's token ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Bias, Logits, kept
from paradecode.core.noise import gumbel
from paradecode.core.vocabulary import Vocabulary

POOL = 64
"""Best tokens of a draft distribution that are considered where noise or a translation reorders
them."""


def candidates(
    seq: TokenSequence,
    logits: Logits,
    paths: list[list[int]],
    width: int,
    vocabulary: Vocabulary | None,
    shares_noise: bool = True,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """The tokens that a draft model expects after each path.

    Args:
        logits: one row for each path.
        paths: the draft tokens (in target ids) between the last committed token and the row.
        vocabulary: how the draft model's tokens correspond to the target's.
        shares_noise: add the noise of the target's own draw.

    Returns:
        int32 [F, W] the draft model's ids, int32 [F, W] the target's ids, and float64 [F, W] the
        probability that each is the target's token, best first; 0 marks tokens that the target
        lacks.
    """
    noisy = shares_noise and seq.sampler.warp.temperature > 0
    logits, vocabulary = processed(seq, logits, paths, vocabulary)
    if not noisy and vocabulary is None:
        own, scores = _best(logits, width)
        return own, own, np.exp(scores)
    rows, scores = _best(logits, POOL)
    own = rows if vocabulary is None else vocabulary.said(rows)
    ids = own if vocabulary is None else vocabulary.to_target[own]
    scores[ids < 0] = -np.inf
    if noisy:
        for row, path in enumerate(paths):
            scores[row] = _perturbed(seq, scores[row], ids[row], len(path))
        total = np.logaddexp.reduce(scores, axis=1, keepdims=True)
        scores -= np.where(np.isfinite(total), total, 0.0)  # A row may have nothing to offer.
    order = np.argsort(-scores, axis=1, kind="stable")[:, :width]
    best = np.exp(np.take_along_axis(scores, order, axis=1))
    return np.take_along_axis(own, order, axis=1), np.take_along_axis(ids, order, axis=1), best


def processed(
    seq: TokenSequence, logits: Logits, paths: list[list[int]], vocabulary: Vocabulary | None
) -> tuple[Logits, Vocabulary | None]:
    """Logits with the target's penalties, bans and constraint added behind each path, if there are
    any and the draft model has the target's tokens; and the vocabulary with which to read their
    columns.

    A row has minus infinity everywhere if no token may follow, or none that the draft model can
    propose.
    """
    if seq.sampler.bare or not (vocabulary is None or vocabulary.same):
        return logits, vocabulary
    if vocabulary is not None:
        logits = vocabulary.widened(logits)
    biases = [_bias(seq, logits.select([row]), path) for row, path in enumerate(paths)]
    return (logits.with_bias(biases) if any(bias is not None for bias in biases) else logits), None


def _best(logits: Logits, count: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The likeliest tokens of each row and their log-probabilities, -inf for banned ones."""
    ids, values = logits.top_k(count)
    with np.errstate(invalid="ignore"):  # In a row without any token these are no numbers.
        scores = logits.log_probability(ids)
    return ids, np.where(np.isfinite(values), scores, -np.inf)


def _bias(seq: TokenSequence, row: Logits, path: list[int]) -> Bias | None:
    try:
        return seq.sampler.bias(row, path)
    except InvalidInput:  # It ends the request if the target comes here, and only then.
        size = row.shape[1]
        return np.arange(size, dtype=np.int32), np.full(size, -np.inf, np.float32)


def _perturbed(
    seq: TokenSequence, scores: NDArray[np.float64], ids: NDArray[np.int32], offset: int
) -> NDArray[np.float64]:
    """Scaled log-probabilities plus the target's noise; -inf for what the warp filters out."""
    perturbed = np.full(len(scores), -np.inf)
    if np.isfinite(scores).any():
        places, scaled = kept(scores, seq.sampler.warp)
        perturbed[places] = scaled + gumbel(seq.sampler.noise_key(offset), ids[places])
    return perturbed
