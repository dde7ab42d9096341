"""What a head learns: the target's distribution at each level; and how much of it is accepted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode.training.heads.network import HeadNetwork, Rows
from paradecode.training.heads.texts import HeadText

DEPTH = 5
"""Levels of the chains whose acceptance is shown."""
TEXTS_TOGETHER = 16


@dataclass(frozen=True, eq=False)
class HeadBatch:
    """Texts for one step.

    Attributes:
        rows: what the head reads.
        final: float32 [M, D], the target's last states that say the first level's tokens; for
            level i of a text: from the i-th on.
        wanted: int64 [M], the draft's number of the token that follows each; -1: it has none.
    """

    rows: Rows
    final: Tensor
    wanted: Tensor

    def at(self, level: int) -> Tensor:
        """int64, the rows of ``final`` and ``wanted`` for a level's logits."""
        sizes = [len(each) for each in self.rows.drafting(0)]
        ends = np.cumsum(sizes)
        return torch.cat(
            [torch.arange(end - n + min(level, n), end) for n, end in zip(sizes, ends)]
        )


def batch_of(
    texts: Sequence[HeadText], states: Sequence[NDArray[np.float16]], layers: Sequence[int],
    taps: Sequence[int], numbers: NDArray[np.int64],
) -> HeadBatch:  # fmt: skip
    """A batch of texts.

    Args:
        states: [n, layers * D] of each, of ``layers``; the last of these is the target's last.
        taps: the layers that the head reads.
        numbers: int64 [V], the draft's number of each token, or -1.
    """
    features, tokens, final, wanted, spans, first = [], [], [], [], [], 0
    for text, kept in zip(texts, states):
        parts = np.split(kept, len(layers), axis=1)
        count = len(text.tokens) - 1
        features.append(np.concatenate([parts[layers.index(tap)][:count] for tap in taps], axis=1))
        tokens.append(text.tokens[1:])
        final.append(parts[-1][text.start : count])
        wanted.append(numbers[text.tokens[text.start + 1 :]])
        spans.append((first, count, first + text.start - 1))
        first += count
    rows = Rows(
        torch.from_numpy(np.concatenate(features)).float(),
        torch.from_numpy(np.concatenate(tokens).astype(np.int64)), tuple(spans),
        torch.tensor([int(text.tokens[0]) for text in texts]),
    )  # fmt: skip
    return HeadBatch(
        rows, torch.from_numpy(np.concatenate(final)).float(),
        torch.from_numpy(np.concatenate(wanted)),
    )  # fmt: skip


def loss_of(head: HeadNetwork, batch: HeadBatch, levels: int, decay: float) -> Tensor:
    """Cross-entropy to the target's distribution over the draft's vocabulary, the mean of a row,
    and what the head adds for states that differ from the target's; level i counts ``decay`` ** i.
    Rows whose token cannot be drafted do not count."""
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
    """How often drafts of held-out greedy texts were right.

    Attributes:
        levels: share of drafts whose tokens up to each level are right.
        tokens_a_forward: of greedy decoding with chains of so many tokens.
        rows: number of drafts.
    """

    levels: tuple[float, ...]
    tokens_a_forward: float
    rows: int


def acceptance(head: HeadNetwork, batches: Iterable[HeadBatch]) -> Acceptance:
    """The acceptance over batches."""
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
        for own in lengths.split([len(each) for each in batch.rows.drafting(0)]):
            place = 0
            while place < len(own):
                # The text may end with the draft; nothing follows its last token.
                made_now = min(int(own[place]) + 1, len(own) - place)
                forwards, tokens, place = forwards + 1, tokens + made_now, place + made_now
    share = tuple((right / max(rows, 1)).tolist())
    return Acceptance(share, tokens / max(forwards, 1), rows)
