"""Rank the tokens that a draft model expects next, and translate them to the target's token ids."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import TokenSequence
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Bias, Logits, kept
from paradecode.core.noise import gumbel
from paradecode.core.vocabulary import Vocabulary

POOL = 64
"""Number of best draft tokens that are ranked if random numbers or a translation reorder them."""


def candidates(
    seq: TokenSequence,
    logits: Logits,
    paths: list[list[int]],
    width: int,
    vocabulary: Vocabulary | None,
    shares_noise: bool = True,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """Return the tokens that a draft model considers most probable after each path.

    Args:
        logits: logits of the draft model [F, draft vocabulary]; row f follows path f.
        paths: for each row, the draft tokens (target ids) after the last committed token.
        width: W, the number of tokens for each path.
        vocabulary: maps the draft model's token ids to the target's; None if the ids are the same.
        shares_noise: True adds the random numbers with which the target will sample, at a
            temperature above 0.

    Returns:
        Draft ids int32 [F, W], target ids int32 [F, W], and float64 [F, W]: the probability that
            the target takes each token. Each row is sorted by this probability, highest first; it
            is 0 for tokens that the target lacks.
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
        scores -= np.where(np.isfinite(total), total, 0.0)  # All tokens of a row may be banned.
    order = np.argsort(-scores, axis=1, kind="stable")[:, :width]
    best = np.exp(np.take_along_axis(scores, order, axis=1))
    return np.take_along_axis(own, order, axis=1), np.take_along_axis(ids, order, axis=1), best


def processed(
    seq: TokenSequence, logits: Logits, paths: list[list[int]], vocabulary: Vocabulary | None
) -> tuple[Logits, Vocabulary | None]:
    """Apply the target's penalties, bans and constraint to a draft model's logits.

    This is done only if the request has any of them and the draft model has the target's tokens.
    The second result is the vocabulary that translates the columns of the returned logits; None
    means that the columns are the target's ids.

    A row is minus infinity everywhere if no token may follow its path, or if the draft model cannot
    propose any allowed token.
    """
    if seq.sampler.bare or not (vocabulary is None or vocabulary.same):
        return logits, vocabulary
    if vocabulary is not None:
        logits = vocabulary.widened(logits)
    biases = [_bias(seq, logits.select([row]), path) for row, path in enumerate(paths)]
    return (logits.with_bias(biases) if any(bias is not None for bias in biases) else logits), None


def _best(logits: Logits, count: int) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Return ids and log-probabilities of each row's most probable tokens; banned ones get -inf."""
    ids, values = logits.top_k(count)
    with np.errstate(invalid="ignore"):  # NaN in a row whose tokens are all banned.
        scores = logits.log_probability(ids)
    return ids, np.where(np.isfinite(values), scores, -np.inf)


def _bias(seq: TokenSequence, row: Logits, path: list[int]) -> Bias | None:
    try:
        return seq.sampler.bias(row, path)
    except InvalidInput:  # It is raised again if the target follows this path.
        size = row.shape[1]
        return np.arange(size, dtype=np.int32), np.full(size, -np.inf, np.float32)


def _perturbed(
    seq: TokenSequence, scores: NDArray[np.float64], ids: NDArray[np.int32], offset: int
) -> NDArray[np.float64]:
    """Return log-probabilities at the request's temperature plus the target's Gumbel numbers.

    Tokens that the request's filters remove get -inf.
    """
    perturbed = np.full(len(scores), -np.inf)
    if np.isfinite(scores).any():
        places, scaled = kept(scores, seq.sampler.warp)
        perturbed[places] = scaled + gumbel(seq.sampler.noise_key(offset), ids[places])
    return perturbed
