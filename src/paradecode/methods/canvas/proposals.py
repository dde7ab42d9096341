"""Turns logits into a proposed token for each position."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import TokenSequence
from paradecode.core.logits import Bias, Logits
from paradecode.core.noise import key
from paradecode.core.sampling import SamplingParams, penalties
from paradecode.methods.canvas.canvas import Canvas, Scores
from paradecode.methods.canvas.feasible import Positions, Rules, Tokens

Fuse = Callable[[Logits, Positions], Logits]
"""A policy's change of logits [K, V] (after biases) for positions [K]; returns logits."""


def propose(
    seq: TokenSequence, canvas: Canvas, raw: Logits, positions: Positions, fuse: Fuse
) -> tuple[Tokens, Scores, Logits]:
    """A token for each of ``positions`` [K] from the model's logits ``raw`` [K, V].

    Returns int32 [K] tokens, their probabilities float64 [K], and the logits they came from.

    The steps in order: the mask token is banned; biases and penalties are added (for tokens decided
    anywhere on the canvas); ``fuse``; the constraint bans tokens after which the rest could not be
    filled; temperature, top-k, top-p and min-p choose the token with the noise of (seed, position).
    Equal logits give a position the same token again, in any batch and with any policy. The
    confidence is the probability before temperature.
    """
    logits = fuse(raw.with_bias(_biases(seq, canvas, raw, positions)), positions)
    if canvas.rules is not None:
        logits = logits.with_bias(_bans(canvas, canvas.rules, positions))
    warp = seq.sampler.warp
    keys = [] if warp.temperature == 0 else [key(seq.sampler.seed, p) for p in positions.tolist()]
    tokens = logits.sample(warp, keys)
    confidence = np.exp(logits.log_probability(tokens[:, None])[:, 0])
    return tokens, confidence, logits


def _biases(
    seq: TokenSequence, canvas: Canvas, raw: Logits, positions: Positions
) -> list[Bias | None]:
    params = seq.params
    added = dict(params.logit_bias or {})
    added[canvas.mask_token] = -np.inf
    plain = early = _sparse(added)
    banned = (positions < canvas.start + params.min_tokens).tolist()
    if any(banned):
        early = _sparse({**added, **dict.fromkeys(seq.sampler.stop_ids.tolist(), -np.inf)})
    if not params.penalised:
        return [early if ban else plain for ban in banned]
    ids, changes = _penalties(params, canvas, raw)
    kinds = {ban: _joined(early if ban else plain, ids, changes) for ban in set(banned)}
    return [(kinds[ban][0], kinds[ban][1][row]) for row, ban in enumerate(banned)]


def _bans(canvas: Canvas, rules: Rules, positions: Positions) -> list[Bias | None]:
    """Minus infinity for tokens that the constraint forbids at each position."""
    allowed = rules.allowed(canvas.tokens, canvas.masked, positions)
    allowed[:, canvas.mask_token] = False
    forbidden = [np.flatnonzero(~row).astype(np.int32) for row in allowed]
    return [(ids, np.full(len(ids), -np.inf, np.float32)) for ids in forbidden]


def _sparse(added: dict[int, float]) -> Bias:
    return np.array([*added], np.int32), np.array([*added.values()], np.float32)


def _penalties(params: SamplingParams, canvas: Canvas, raw: Logits) -> Bias:
    """Token ids [m] and what is added to them in each row [K, m]."""
    decided = ~canvas.masked
    output = canvas.tokens[canvas.start :][decided[canvas.start :]]
    ids = np.unique(canvas.tokens[decided] if params.repetition_penalty != 1.0 else output)
    counts = (output[None, :] == ids[:, None]).sum(axis=1)
    values = raw.gather(np.tile(ids, (raw.shape[0], 1)))
    return ids, penalties(params, values, counts).astype(np.float32)


def _joined(bias: Bias, ids: Tokens, changes: NDArray[np.float32]) -> Bias:
    """The sum of a bias and of ``changes`` [K, m] to ascending ``ids`` [m]: ids [n], and additions
    [K, n].

    A banned token stays banned: finite changes do not lift minus infinity.
    """
    every = np.union1d(bias[0], ids).astype(np.int32)
    total = np.zeros((len(changes), len(every)), np.float32)
    total[:, np.searchsorted(every, ids)] = changes
    total[:, np.searchsorted(every, bias[0])] += bias[1]
    return every, total
