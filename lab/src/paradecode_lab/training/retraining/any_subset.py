"""ASSD (arXiv 2504.20456): a masked diffusion model learns the densities that the method needs.

Some tokens of an answer are given beside the prompt, and the others follow one by one, from left to
right. Each text is followed by extra rows: for each token that is not given, the decoder's row that
predicts it. One forward thus computes the whole chain.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode.core.errors import InvalidInput
from paradecode.models.checkpoint import Checkpoint
from paradecode_lab.training.batched import BatchedModel, final_states
from paradecode_lab.training.retraining.run import Objective
from paradecode_lab.training.retraining.texts import AnswerRows

Marks = NDArray[np.bool_]
Places = NDArray[np.int64]


class AnySubsetObjective(Objective):
    """Trains all weights of a masked diffusion model to predict answer tokens.

    Each token is predicted from the given tokens and those before it.

    Args:
        checkpoint: a model from a folder or a GGUF file; the result is written in its precision.
        placed: the largest share of an answer that is given.
        drafts: number of masks in a draft. Half of the tokens are learnt as the first mask, which
            sees all tokens before it. The others are learnt as a later mask, which does not see the
            tokens between.

    Raises:
        InvalidInput: if the model cannot be written, or has no mask token.
    """

    def __init__(
        self, checkpoint: Checkpoint, placed: float, drafts: int, device: torch.device
    ) -> None:
        config = checkpoint.config
        if config.mask_token is None:
            fix = "name a diffusion model, such as paradecode/graded-diffusion"
            raise InvalidInput("--model", checkpoint.source, fix)
        super().__init__(checkpoint, device, "assd", placed=placed, drafts=drafts)
        self.mask = config.mask_token
        self.placed, self.drafts = placed, drafts
        self.model = BatchedModel(config, checkpoint.weights, device)
        self.trained = self.model.parameters

    def loss(self, rows: AnswerRows, random: np.random.Generator, done: float) -> Tensor:
        """Return the mean cross-entropy of the tokens that are not given."""
        known, limit = drawn(rows.answers.cpu().numpy(), self.placed, self.drafts, random)
        states, right = self.chain(rows, known, limit)
        return F.cross_entropy(self.model.logits(states), right)

    def chain(self, rows: AnswerRows, known: Marks, limit: Places) -> tuple[Tensor, Tensor]:
        """Return states [K, D] that predict the tokens that are not given, and these tokens [K].

        Args:
            known, limit: [B, L], results of :func:`drawn`.
        """
        tokens, shift = rows.tokens.cpu().numpy(), int(self.model.config.shift)
        first, length = int(rows.start.min()), tokens.shape[1]
        asked = (rows.answers.cpu().numpy() & ~known)[:, first:]
        at = np.arange(first, length) - shift
        text = (known[:, at] | (at < limit[:, first:])) if shift else np.zeros(asked.shape, bool)
        both = np.concatenate([tokens, np.where(text, tokens[:, at], self.mask)], 1)
        places = torch.from_numpy(np.concatenate([np.arange(length), at])).to(self.device)
        groups = self.model.groups(places[:length]).cpu().numpy()
        seen = columns_seen(known, asked, limit, groups, shift)
        inside = torch.from_numpy(seen).to(self.device)
        if window := self.model.config.sliding_window:
            inside &= places > places[:, None] - window
        columns = torch.from_numpy(both).to(self.device)
        where = torch.from_numpy(asked).to(self.device)
        needed = torch.cat([rows.inside, where], 1)
        states = final_states(self.model, columns, places, inside[:, None], needed)[:, length:]
        return states[where], rows.tokens[:, first:][where]


def drawn(
    answers: Marks, placed: float, drafts: int, random: np.random.Generator
) -> tuple[Marks, Places]:
    """Draw which tokens are given, and how far each other token sees the tokens that are not.

    Args:
        answers: bool [B, L], the answers' tokens.
        placed: the given share of an answer is uniform from 0 to this; the number of tokens is
            rounded down.
        drafts: see :class:`AnySubsetObjective`.

    Returns:
        bool [B, L], the prompts and the given tokens; and int64 [B, L], the limit of each token
        that is not given. From its limit on, a token sees no other token that is not given.
    """
    known = answers.cumsum(1) == 0
    limit = np.zeros(answers.shape, np.int64)
    for row, marks in enumerate(answers):
        places = np.flatnonzero(marks)
        count = int(random.uniform(0, placed) * len(places))
        known[row, random.permutation(places)[:count]] = True
        chain = places[~known[row, places]]
        ahead = random.integers(1 - drafts, drafts, len(chain)).clip(0)
        limit[row, chain] = chain[np.maximum(np.arange(len(chain)) - ahead, 0)]
    return known, limit


def columns_seen(known: Marks, asked: Marks, limit: Places, groups: Places, shift: int) -> Marks:
    """Return bool [B, L + Q, L + Q]: which columns of [text | predicting rows] each column sees.

    A given token sees the given tokens of its own group and of earlier groups. Another token sees
    all given tokens, and the other tokens before it. The row that predicts a token sees all given
    tokens, those before its limit, and itself.

    In a model that shifts, this row is at the place of the token before. It does not see that
    token, except where the decoder's cache has it: if the token was given, and the row sees tokens
    that were not given.

    Args:
        known, limit: [B, L], results of :func:`drawn`.
        asked: bool [B, Q], which of the last Q tokens are learnt.
        groups: int64 [L], from :meth:`BatchedModel.groups`.
        shift: 1 in a model that shifts, otherwise 0.
    """
    (size, length), count = known.shape, asked.shape[1]
    at, last = np.arange(length), np.arange(length - count, length)
    seen = np.zeros((size, length + count, length + count), bool)
    given = known[:, None, :]
    seen[:, :length, :length] = np.where(
        known[..., None], given & (groups <= groups[:, None]), given | (at <= at[:, None])
    )
    ends = limit[:, last]
    speaks = given | (at < ends[..., None])
    if shift:
        alone = ends == np.where(asked, ends, length).min(1)[:, None]
        hidden = alone | ~known[:, last - 1]
        speaks &= ~(hidden[..., None] & (at == last[:, None] - 1))
    seen[:, length:, :length] = asked[..., None] & speaks
    both = np.arange(length + count)
    seen[:, both, both] = True
    return seen
