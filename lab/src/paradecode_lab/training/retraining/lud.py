"""Lexical units (LUD, arXiv 2405.15208): a model learns to write several sure tokens at once.

A unit is a token and the run of tokens after it that the model, before this training, is sure of.
The paper re-arranges its texts so that placeholders stand where a unit begins, and the model has to
give the whole unit there. Here a text has groups of placeholders after several of its tokens at the
same time. Neither the text nor another group sees a group of placeholders, so all tokens also
remain ordinary samples of the next token.
"""

from __future__ import annotations

from copy import copy

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from paradecode.models.checkpoint import Checkpoint
from paradecode_lab.training.batched import final_states, spread
from paradecode_lab.training.retraining.run import MaskedObjective
from paradecode_lab.training.retraining.texts import AnswerRows, causal_states

GROUPS = 8
"""Number of groups of placeholders in a text; each follows another token."""


def units(sure: Tensor, most: int) -> Tensor:
    """Return the length of the unit that begins at each token, int64 [B, L].

    Args:
        sure: bool [B, L], answer tokens whose probability is above the threshold.
        most: the most tokens of a unit.
    """
    length = torch.ones(sure.shape, dtype=torch.int64, device=sure.device)
    for at in range(sure.shape[1] - 2, -1, -1):
        longer = (1 + length[:, at + 1]).clamp(max=most)
        length[:, at] = torch.where(sure[:, at + 1], longer, 1)
    return length


class LexicalUnitObjective(MaskedObjective):
    """Trains a model to fill placeholders.

    Args:
        checkpoint: see :class:`MaskedObjective`; its mask is the placeholder.
        placeholders: number of placeholders in a group: the most tokens of a unit after its first
            one.
        confident: probability from which on the model counts as sure of a token.
    """

    def __init__(
        self, checkpoint: Checkpoint, placeholders: int, confident: float, device: torch.device
    ) -> None:
        super().__init__(checkpoint, device, "lud", placeholders=placeholders, confident=confident)
        self.placeholders, self.confident = placeholders, confident
        self.before = copy(self.model)
        self.before.w = {name: tensor.clone() for name, tensor in self.model.w.items()}

    def loss(self, rows: AnswerRows, random: np.random.Generator, done: float) -> Tensor:
        """Return the cross-entropy of next tokens, plus that of units at their placeholders."""
        tokens, answers = rows.tokens, rows.answers
        length = tokens.shape[1]
        sure = (self._chances(rows) >= self.confident) & answers
        roots = self._roots(rows, random)
        wanted, labels = self._labels(tokens, roots, units(sure, self.placeholders + 1))
        columns, places, seen = with_placeholders(tokens, roots, self.placeholders, self.mask)
        places = places.clamp(max=self.checkpoint.config.context_length - 1)
        # In a group, placeholders that are not trained follow those that are, so no trained one
        # sees them.
        needed = torch.cat([rows.inside, wanted], 1)
        states = final_states(self.model, columns, places, seen[:, None], needed)
        before, right = rows.predicted(states)
        plain = F.cross_entropy(self.model.logits(before), right)
        logits = self.model.logits(states[:, length:][wanted])
        return plain + F.cross_entropy(logits, labels[wanted])

    @torch.no_grad()
    def _chances(self, rows: AnswerRows) -> Tensor:
        """Return each answer token's probability before training, float32 [B, L]; 0 elsewhere."""
        states, right = rows.predicted(causal_states(self.before, rows))
        chances = self.before.logits(states).softmax(-1)
        return spread(chances.gather(-1, right[:, None])[:, 0], rows.answers)

    def _roots(self, rows: AnswerRows, random: np.random.Generator) -> Tensor:
        """Draw the tokens that groups of placeholders follow, int64 [B, GROUPS].

        A drawn token is one whose next token belongs to the answer.
        """
        drawn = torch.from_numpy(random.random((len(rows.tokens), GROUPS))).to(self.device)
        first, count = rows.start[:, None] - 1, (rows.end - rows.start)[:, None]
        return first + (drawn * count).long()

    def _labels(self, tokens: Tensor, roots: Tensor, units: Tensor) -> tuple[Tensor, Tensor]:
        """Return which placeholders are trained, and on which tokens.

        A placeholder inside the unit must give its token. The first one after the unit must give
        the placeholder itself. The others are not trained.

        Returns:
            bool and int64, each [B, GROUPS * placeholders].
        """
        number = torch.arange(1, self.placeholders + 1, device=self.device)
        unit = units.gather(1, roots + 1)[..., None]
        at = (roots[..., None] + number + 1).clamp(max=tokens.shape[1] - 1)
        right = tokens.gather(1, at.flatten(1)).view(at.shape)
        labels = torch.where(number < unit, right, self.mask)
        return (number <= unit).flatten(1), labels.flatten(1)


def with_placeholders(
    tokens: Tensor, roots: Tensor, count: int, mask: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Append ``count`` placeholders for each root to the texts.

    Args:
        tokens: int64 [B, L].
        roots: int64 [B, G], columns of the tokens that the placeholders follow.
        count: number of placeholders in a group.
        mask: id of the placeholder.

    Returns:
        Tokens and positions, int64 [B, T] with T = L + G * count, and what each column sees, bool
        [B, T, T]. A placeholder sees the text up to its root, and its group up to itself.
    """
    size, length = tokens.shape
    device, groups = tokens.device, roots.shape[1]
    number = torch.arange(1, count + 1, device=device)
    text = torch.arange(length, device=device).expand(size, length)
    behind = (roots[..., None] + number).flatten(1)
    places = torch.cat([text, behind], 1)
    last = torch.cat([text, roots.repeat_interleave(count, 1)], 1)
    group = torch.arange(groups, device=device).repeat_interleave(count)
    group = torch.cat([torch.full((length,), -1, device=device), group])
    is_text = group < 0
    sees_text = is_text & (places[:, None, :] <= last[..., None])
    own = ~is_text & (group[:, None] == group) & (places[:, None, :] <= places[..., None])
    columns = torch.cat([tokens, torch.full_like(behind, mask)], 1)
    return columns, places, sees_text | own
