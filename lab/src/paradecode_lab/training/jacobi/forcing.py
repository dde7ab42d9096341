"""Jacobi Forcing's loss: after wrong tokens, predict the same as after right ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode_lab.training.batched import BatchedModel, final_states
from paradecode_lab.training.jacobi.states import JacobiStates
from paradecode_lab.training.running import TuneSettings
from paradecode_lab.training.unmasking.fine_tune import (
    Rows,
    Run,
    TuneReport,
    fine_tune,
)

Marks = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class JacobiSettings(TuneSettings):
    """Settings of the training; ``weight`` is the weight of the next-token loss."""

    weight: float = 10.0


@dataclass(frozen=True)
class Foresight:
    """Shares of held-out answers' tokens that are the most likely token of the row before them.

    Attributes:
        behind_text: the share for rows of the text itself, as in plain decoding.
        behind_noise: the share for rows of the noisy copies, which follow noisy tokens.
    """

    behind_text: float
    behind_noise: float


def fit_jacobi(
    model: BatchedModel, made: JacobiStates, settings: JacobiSettings, run: Run
) -> TuneReport[Foresight]:
    """Fine-tune all weights of ``model`` on its own greedy answers.

    Raises:
        InvalidInput: if there are too few texts.
    """

    def loss(rows: Rows, random: np.random.Generator) -> Tensor:
        copy = int(random.integers(0, made.noisy.shape[1]))
        return forced(model, made, rows, copy, settings.weight)

    return fine_tune(
        model.parameters, made, settings, loss,
        lambda held: _measured(model, made, held, settings.batch), run,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Pairs:
    """The predictions of the answer tokens in a batch of texts.

    Attributes:
        plain: logits [K, V] of the rows before these tokens in the text.
        right: int64 [K], the right tokens.
        noisy: logits [J, V] after noisy tokens, for those of the K tokens that have noise before
            them.
        behind: int64 [J], index among the K tokens for each row of ``noisy``.
    """

    plain: Tensor
    right: Tensor
    noisy: Tensor
    behind: Tensor


def pairs(model: BatchedModel, made: JacobiStates, rows: Rows, copy: int) -> Pairs:
    """Predict answer tokens in one forward over each text and its noisy copy, side by side.

    Both have the same positions.
    """
    length = int(made.end[rows].max())
    tokens = made.tokens[rows, :length].astype(np.int64)
    noisy = made.noisy[rows, copy, :length].astype(np.int64)
    start, end = (each[rows, None].astype(np.int64) for each in (made.start, made.end))
    window = made.block * made.noisy.shape[1]
    first = first_of_window(start, copy * made.block, window, length)
    seen = columns_seen(first, start)
    both = torch.from_numpy(np.concatenate([tokens, noisy], 1)).to(model.device)
    places = np.tile(np.arange(length), 2)
    if model.config.sliding_window:
        seen &= places > places[:, None] - model.config.sliding_window
    states = final_states(
        model, both, torch.from_numpy(places).to(model.device),
        torch.from_numpy(seen[:, None]).to(model.device),
    )  # fmt: skip
    at = np.arange(length)
    about = (at >= start - 1) & (at < end - 1)  # Rows that predict an answer token.
    wrong = differs(tokens, noisy, first) & about
    where, which = np.nonzero(about), np.nonzero(wrong)
    number = np.cumsum(about.ravel()).reshape(about.shape) - 1
    return Pairs(
        model.logits(states[where[0], where[1]]), both[where[0], where[1] + 1],
        model.logits(states[which[0], length + which[1]]),
        torch.from_numpy(number[wrong]).to(model.device),
    )  # fmt: skip


def first_of_window(
    start: NDArray[np.int64], skipped: int, window: int, length: int
) -> NDArray[np.int64]:
    """Return the first position of each position's window, int64 [B, L].

    Windows of ``window`` positions are counted from ``skipped`` positions before the answer, so the
    first one is shorter. Values at prompt positions have no meaning.

    Args:
        start: int64 [B, 1], index of each answer's first token.
    """
    at = np.arange(length)[None]
    return np.maximum(start, start - skipped + (at - start + skipped) // window * window)


def columns_seen(first: NDArray[np.int64], start: NDArray[np.int64]) -> Marks:
    """Return bool [B, 2L, 2L]: which columns of [text | noisy copy] each column sees.

    The text sees itself, causally. A noisy answer token sees the text before its window, and the
    noisy tokens of its window up to itself. Noisy prompt columns only see themselves.
    """
    count, length = first.shape
    at = np.arange(length)
    seen = np.zeros((count, 2 * length, 2 * length), bool)
    seen[:, :length, :length] = at <= at[:, None]
    inside = (at >= start)[..., None]
    seen[:, length:, :length] = inside & (at < first[..., None])
    seen[:, length:, length:] = inside & (at >= first[..., None]) & (at <= at[:, None])
    seen[:, length + at, length + at] = True
    return seen


def differs(tokens: NDArray[np.int64], noisy: NDArray[np.int64], first: NDArray[np.int64]) -> Marks:
    """Return bool [B, L]: whether any noisy token from the window's start to here is wrong."""
    wrong = np.cumsum(tokens != noisy, 1)
    before = np.where(first > 0, np.take_along_axis(wrong, np.maximum(first - 1, 0), 1), 0)
    return wrong > before


def forced(model: BatchedModel, made: JacobiStates, rows: Rows, copy: int, weight: float) -> Tensor:
    """Return the consistency loss plus ``weight`` times the next-token loss.

    The consistency loss is the cross-entropy of noisy rows to the model's own predictions after the
    text, which get no gradient (Hu et al. 2025, arXiv 2512.14681).
    """
    found = pairs(model, made, rows, copy)
    loss = weight * F.cross_entropy(found.plain, found.right)
    if len(found.behind):
        wanted = found.plain.detach().softmax(-1)[found.behind]
        loss = loss + F.cross_entropy(found.noisy, wanted)
    return loss


@torch.no_grad()
def _measured(model: BatchedModel, made: JacobiStates, held: Rows, batch: int) -> Foresight:
    """Measure every held-out text once, with the noisy copies taken in turn."""
    sums, copies = np.zeros(4), made.noisy.shape[1]
    for number, rows in enumerate(np.array_split(held, -(-len(held) // batch))):
        found = pairs(model, made, rows, number % copies)
        plain, noisy = found.plain.argmax(-1), found.noisy.argmax(-1)
        sums[0] += float((plain == found.right).sum())
        sums[2] += float((noisy == found.right[found.behind]).sum())
        sums[1::2] += len(plain), len(noisy)
    return Foresight(*(sums[::2] / np.maximum(sums[1::2], 1)).tolist())
