"""Compute the loss of a head at each level, and how many of its draft tokens are accepted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode_lab.training.heads.network import HeadNetwork, Rows, sizes_of
from paradecode_lab.training.heads.texts import HeadText

DEPTH = 5
"""Number of levels of the drafts whose acceptance is measured."""
TEXTS_TOGETHER = 16


@dataclass(frozen=True, eq=False)
class HeadBatch:
    """The texts of one optimiser step.

    Attributes:
        rows: the inputs of the head.
        final: float32 [M, D], the target's last states, which predict the tokens of the first
            level. Level i of a text uses them from the i-th on.
        wanted: int64 [M], index in the draft's vocabulary of the token that follows each state, or
            -1 if it cannot be drafted.
    """

    rows: Rows
    final: Tensor
    wanted: Tensor

    def at(self, level: int) -> Tensor:
        """Return the rows of ``final`` and ``wanted`` that belong to a level's logits, int64."""
        sizes = sizes_of(self.rows.drafting(0))
        parts = [np.arange(end - n + min(level, n), end) for n, end in zip(sizes, np.cumsum(sizes))]
        return torch.as_tensor(np.concatenate(parts))


def batch_of(
    texts: Sequence[HeadText], states: Sequence[NDArray[np.float16]], layers: Sequence[int],
    taps: Sequence[int], numbers: NDArray[np.int64],
) -> HeadBatch:  # fmt: skip
    """Make a batch of texts.

    Args:
        texts: the texts.
        states: for each text float16 [n, layers * D], outputs of ``layers``.
        layers: the layers in ``states``; the last one is the target's last layer.
        taps: the layers that the head reads.
        numbers: int64 [V], index of each token in the draft's vocabulary, or -1.
    """
    counts = [len(text.tokens) - 1 for text in texts]
    firsts = [sum(counts[:number]) for number in range(len(texts))]
    each = [*zip(texts, firsts, counts)]
    every = torch.as_tensor(np.concatenate([kept[:n] for kept, n in zip(states, counts)]))
    parts = every.split(every.shape[1] // len(layers), 1)
    answers = np.concatenate([np.arange(first + text.start, first + n) for text, first, n in each])
    tokens = np.concatenate([text.tokens[1:] for text in texts])
    ahead = np.concatenate([text.tokens[text.start + 1 :] for text in texts])
    rows = Rows(
        torch.cat([parts[layers.index(tap)] for tap in taps], 1).float(),
        torch.as_tensor(tokens.astype(np.int64)),
        tuple((first, n, first + text.start - 1) for text, first, n in each),
        torch.as_tensor(np.array([text.tokens[0] for text in texts], np.int64)),
    )  # fmt: skip
    final = parts[-1][torch.as_tensor(answers)].float()
    return HeadBatch(rows, final, torch.as_tensor(numbers[ahead]))


def loss_of(head: HeadNetwork, batch: HeadBatch, levels: int, decay: float) -> Tensor:
    """Return the mean loss over rows, as a weighted mean over levels.

    A level's loss is the cross-entropy to the target's distribution over the draft's vocabulary,
    plus the head's loss for states that differ from the target's. Level i has the weight ``decay``
    ** i. Rows whose token cannot be drafted do not count.
    """
    with torch.no_grad():
        target = head.target
        final = target.final(batch.final)
        taught = F.linear(final, target.rows).float().softmax(-1)
    total = torch.zeros(())
    for level, state in enumerate(head.states(batch.rows, levels)):
        at = batch.at(level)
        known = batch.wanted[at] >= 0
        if known.any():
            logits = head.say(state[known], level)
            loss = F.cross_entropy(logits, taught[at[known]])
            if head.hard:
                loss = torch.lerp(loss, F.cross_entropy(logits, batch.wanted[at[known]]), head.hard)
            if head.match:
                loss = loss + head.match * F.smooth_l1_loss(state[known], final[at[known]])
            total = total + decay**level * loss
    return total / sum(decay**level for level in range(levels))


@dataclass(frozen=True)
class Acceptance:
    """The agreement of drafts for held-out greedy texts with these texts.

    Attributes:
        levels: for each level, the share of drafts whose tokens up to this level are all right.
        tokens_a_forward: mean number of tokens per forward when greedy decoding uses such drafts.
        rows: number of drafts.
    """

    levels: tuple[float, ...]
    tokens_a_forward: float
    rows: int


def acceptance(head: HeadNetwork, batches: Iterable[HeadBatch]) -> Acceptance:
    """Draft after every row of the batches, and return the acceptance."""
    depth = head.heads or DEPTH
    right, rows, forwards, tokens = np.zeros(depth), 0, 0, 0
    for batch in batches:
        with torch.no_grad():
            made = head.levels(batch.rows, depth)
        lengths = torch.zeros(len(batch.wanted), dtype=torch.int64)
        going = torch.ones(len(batch.wanted), dtype=torch.bool)
        for level, logits in enumerate(made):
            at = batch.at(level)
            good = torch.zeros_like(going)
            good[at - level] = logits.argmax(-1) == batch.wanted[at]
            going = going & good
            lengths += going
            right[level] += int(going.sum())
        rows += len(lengths)
        for own in lengths.cpu().split(sizes_of(batch.rows.drafting(0))):
            place = 0
            while place < len(own):
                # A draft may reach beyond the end of the text, but decoding makes no more tokens
                # there.
                made_now = min(int(own[place]) + 1, len(own) - place)
                forwards, tokens, place = forwards + 1, tokens + made_now, place + made_now
    share = tuple((right / max(rows, 1)).tolist())
    return Acceptance(share, tokens / max(forwards, 1), rows)
