"""ASSD (arXiv 2504.20456): a masked diffusion model learns the density that the method asks for.

Some tokens of an answer are given beside the prompt, and the others come one by one, from left to
right. Behind each text stands a second row: for each token that comes, the row of the decoder that
speaks for it. So one forward has the whole chain.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode.core.errors import InvalidInput
from paradecode.models.checkpoint import Checkpoint
from paradecode_lab.measure.machine import digest
from paradecode_lab.training.batched import BatchedModel, final_states
from paradecode_lab.training.retraining.texts import MODEL, AnswerRows
from paradecode_lab.training.unmasking.folder import save_folder, source_of

Marks = NDArray[np.bool_]
Places = NDArray[np.int64]


class AnySubsetObjective:
    """All weights of a masked diffusion model learn each token of an answer behind those before it.

    Args:
        checkpoint: of a folder or a GGUF file; what is trained is written in its precision.
        placed: most of an answer that is given, as a share.
        drafts: masks of a draft; half of the tokens are learnt as the first one, which knows all
            tokens before it, and the others as one of the rest, which does not know those between.

    Raises:
        InvalidInput: if the model cannot be written, or has no mask token.
    """

    def __init__(
        self, checkpoint: Checkpoint, placed: float, drafts: int, device: torch.device
    ) -> None:
        source, config = source_of(checkpoint), checkpoint.config
        if config.mask_token is None:
            fix = "name a diffusion model, such as paradecode/graded-diffusion"
            raise InvalidInput("--model", checkpoint.source, fix)
        self.checkpoint, self.device, self.mask = checkpoint, device, config.mask_token
        self.placed, self.drafts = placed, drafts
        self.model = BatchedModel(config, checkpoint.weights, device)
        self.trained = self.model.parameters
        self.facts = {
            "objective": "assd", "weights": digest(source), "placed": placed, "drafts": drafts,
        }  # fmt: skip

    def loss(self, rows: AnswerRows, random: np.random.Generator, done: float) -> Tensor:
        """The mean cross-entropy of the tokens that are not given."""
        known, limit = drawn(rows.answers.cpu().numpy(), self.placed, self.drafts, random)
        states, right = self.chain(rows, known, limit)
        return F.cross_entropy(self.model.logits(states), right)

    def chain(self, rows: AnswerRows, known: Marks, limit: Places) -> tuple[Tensor, Tensor]:
        """States [K, D] that speak for the tokens which are not given, and these tokens [K].

        Args:
            known, limit: [B, L], as of :func:`drawn`.
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

    def export(self, folder: Path) -> None:
        """Write MODEL, a copy of the model's folder with the new weights."""
        save_folder(self.checkpoint, self.trained, folder / MODEL)


def drawn(
    answers: Marks, placed: float, drafts: int, random: np.random.Generator
) -> tuple[Marks, Places]:
    """Which tokens are given, and how far each other one sees the tokens that come.

    Args:
        answers: bool [B, L].
        placed: a share, uniform from 0 to this, of each answer is given; it is rounded down.
        drafts: see :class:`AnySubsetObjective`.

    Returns:
        bool [B, L], prompts and the given tokens; int64 [B, L], in ``limit`` of a token that is not
        given the place from which on it sees none of those.
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
    """bool [B, L + Q, L + Q]: which columns each column of [text | rows that speak] sees.

    A given token sees the given ones of its own group and of earlier groups. Another token sees all
    that is given, and those that come before it. The row that speaks for a token sees all that is
    given, those before its limit, and itself. In a model that shifts it stands where the token
    before is. It does not see that one; but if it was given, and others are seen that were not, it
    does, as in the decoder's cache.

    Args:
        known, limit: [B, L], as of :func:`drawn`.
        asked: bool [B, Q], which of the last Q tokens are learnt.
        groups: int64 [L], from :meth:`BatchedModel.groups`.
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
