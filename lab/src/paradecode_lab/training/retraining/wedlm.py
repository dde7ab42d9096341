"""WeDLM (arXiv 2512.22737): a causal model learns to fill masks that follow known tokens.

A row has a text twice, at equal positions: unchanged, and in blocks with some masked tokens. In the
paper's code, the known tokens of a block move before its masks, and then all attention is causal.
Here columns stay at their places, and see the same.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from paradecode.models.checkpoint import Checkpoint
from paradecode_lab.training.batched import final_states
from paradecode_lab.training.retraining.run import MaskedObjective
from paradecode_lab.training.retraining.texts import AnswerRows


class WedlmObjective(MaskedObjective):
    """Trains a model to fill masks, and to go on predicting the next token.

    Args:
        checkpoint: see :class:`MaskedObjective`.
        block: number of positions in a block. Blocks are counted from the text's beginning, so the
            first ones may hold the prompt, which is never masked.
        ends: how often the end of an answer is repeated, so that masks after it learn to end it.
        weight: weight of the next-token loss; the weight of the masks' loss is 1.
    """

    def __init__(
        self, checkpoint: Checkpoint, block: int, ends: int, weight: float, device: torch.device
    ) -> None:
        super().__init__(checkpoint, device, "wedlm", block=block, ends=ends, weight=weight)
        self.block, self.ends, self.weight = block, ends, weight

    def loss(self, rows: AnswerRows, random: np.random.Generator, done: float) -> Tensor:
        """Return the weighted mean of the masks' loss and the next-token loss.

        Each mask weighs 1 / the share of masks in its block.
        """
        context, stops = self.checkpoint.config.context_length, self.checkpoint.config.eos_tokens
        rows = with_ends(rows, self.ends - 1, stops, context)
        tokens, length = rows.tokens, rows.tokens.shape[1]
        shares, masked = drawn(rows.answers.cpu().numpy(), self.block, random)
        hidden = torch.from_numpy(masked).to(self.device)
        columns = torch.cat([tokens, tokens.masked_fill(hidden, self.mask)], 1)
        places = torch.arange(length, device=self.device)
        seen, both = columns_seen(hidden, rows.inside, self.block), rows.inside.tile(2)
        states = final_states(self.model, columns, places.tile(2), seen[:, None], both)
        before, right = rows.predicted(states)
        plain = F.cross_entropy(self.model.logits(before), right)
        if not masked.any():
            return self.weight * plain / (1 + self.weight)
        logits = self.model.logits(states[:, length:][hidden])
        each = F.cross_entropy(logits, tokens[hidden], reduction="none")
        parts = torch.from_numpy(1 / shares[masked]).to(each)
        return ((each * parts).sum() / parts.sum() + self.weight * plain) / (1 + self.weight)


def with_ends(rows: AnswerRows, count: int, stops: tuple[int, ...], context: int) -> AnswerRows:
    """Return the rows with longer ends: the stop token of an answer is repeated ``count`` times.

    Answers that do not end with one of ``stops`` stay as they are, and no text exceeds ``context``
    tokens.
    """
    tokens, end = rows.tokens, rows.end
    last = tokens.gather(1, end[:, None] - 1)
    ended = torch.isin(last[:, 0], torch.tensor(stops, device=last.device))
    longer = torch.where(ended, (end + count).clamp(max=context), end).maximum(end)
    wide = F.pad(tokens, (0, max(int(longer.max()) - tokens.shape[1], 0)))
    at = torch.arange(wide.shape[1], device=last.device)
    added = (at >= end[:, None]) & (at < longer[:, None])
    return AnswerRows(torch.where(added, last, wide), rows.start, longer)


def drawn(
    answers: np.ndarray, block: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Draw, for each block of each text, which answer tokens are masked.

    Args:
        answers: bool [B, L], the tokens that may be masked.

    Returns:
        The share of masks in each token's block, float64 [B, L] from 0 to 1, and the masked tokens,
        bool [B, L]. Their number is the rounded share.
    """
    shares, masked = np.zeros(answers.shape), np.zeros(answers.shape, bool)
    for row, first in np.ndindex(len(answers), -(-answers.shape[1] // block)):
        part = slice(first * block, (first + 1) * block)
        free = first * block + np.flatnonzero(answers[row, part])
        shares[row, part] = share = random.uniform(1e-8, 1.0)
        masked[row, random.permutation(free)[: round(share * len(free))]] = True
    return shares, masked


def columns_seen(masked: Tensor, inside: Tensor, block: int) -> Tensor:
    """Return bool [B, 2L, 2L]: which columns of [text | text with masks] each column sees.

    The text sees itself, causally. In the second copy, a column sees the text of earlier blocks.
    Within its own block, a known token sees the known tokens up to itself, and a mask sees all
    known tokens, and the masks up to itself.

    Args:
        masked: bool [B, L], the masked tokens.
        inside: bool [B, L], true for tokens and false for padding.
    """
    size, length = masked.shape
    at = torch.arange(length, device=masked.device)
    group, turn = at // block, at + length * masked  # Known tokens come first.
    seen = torch.zeros((size, 2 * length, 2 * length), dtype=torch.bool, device=masked.device)
    seen[:, :length, :length] = at <= at[:, None]
    seen[:, length:, :length] = group < group[:, None]
    own = (turn[:, None, :] <= turn[:, :, None]) & inside[:, None, :]
    own |= torch.eye(length, dtype=torch.bool, device=masked.device)
    seen[:, length:, length:] = own & (group == group[:, None])
    return seen
