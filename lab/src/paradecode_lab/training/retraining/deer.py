"""DEER (arXiv 2512.15176): the first layers of a model learn to draft for it, all masks at once.

Stage I: an answer is cut at a random place, and tokens after the cut are masked with a probability
that is drawn for each text, as in masked diffusion. Stage II: only a few tokens after the cut
remain, all masked, and the nearest weigh most, because a draft ends with its first wrong token.

Two things differ from the paper. Attention stays causal, which these layers are used to. The keys
and values of a text therefore stay valid, and a draft computes only its masks and the new tokens. A
row predicts the next position, so the last token of the text, and not a mask, gives the first token
of a draft. Between prompt and cut these rows go on learning the next token.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from paradecode.core.errors import InvalidInput
from paradecode.models.checkpoint import Checkpoint
from paradecode_lab.training.batched import final_states
from paradecode_lab.training.retraining.run import MaskedObjective
from paradecode_lab.training.retraining.texts import MODEL, AnswerRows
from paradecode_lab.training.unmasking.folder import change_config

LEAST_SHARE = 1e-3
"""The least probability of a mask in stage I.

A mask weighs 1 over its probability, so a higher least probability limits the weights. LLaDA uses
the same value.
"""
Weights = NDArray[np.float64]
"""[B, L]: the weight of each token's loss; it is above 0 for masked tokens."""


class DeerObjective(MaskedObjective):
    """Trains all weights of a drafter, which is at first a copy of its target's first layers.

    Args:
        checkpoint: the target; see :class:`MaskedObjective`.
        layers: number of layers of the drafter.
        refined: share of the steps that belong to stage II.
        reach: the most masks of a text in stage II.
        base: a mask of stage II weighs ``base`` times as much as the mask after it.
        weight: weight of the next-token loss; the weight of the masks' loss is 1.
    """

    def __init__(
        self, checkpoint: Checkpoint, layers: int, refined: float, reach: int, base: float,
        weight: float, device: torch.device,
    ) -> None:  # fmt: skip
        if layers > checkpoint.config.layers:
            raise InvalidInput("--layers", layers, f"the model has {checkpoint.config.layers}")
        cut = replace(checkpoint, config=checkpoint.config.altered(layers=layers))
        super().__init__(
            cut, device, "deer", layers=layers, refined=refined, reach=reach, base=base,
            weight=weight,
        )  # fmt: skip
        self.refined, self.reach, self.base, self.weight = refined, reach, base, weight

    def loss(self, rows: AnswerRows, random: np.random.Generator, done: float) -> Tensor:
        """Return the weighted mean of the masks' loss and the next-token loss before the cut."""
        start, end = rows.start.cpu().numpy(), rows.end.cpu().numpy()
        cut, length = random.integers(start, end), rows.tokens.shape[1]
        if done < 1.0 - self.refined:
            weights = continued(cut, end, length, random)
        else:
            weights = refined(cut, end, length, self.reach, self.base, random)
        known = torch.from_numpy(weights).to(rows.tokens.device, torch.float32)
        places = torch.arange(length, device=self.device)
        columns = rows.tokens.masked_fill(known > 0, self.mask)
        causal = places <= places[:, None]
        states = final_states(self.model, columns, places, causal, rows.inside)
        before = rows.answers & (places < torch.from_numpy(cut).to(self.device)[:, None])
        drafted = self._each(states, rows.tokens, known > 0) @ known[known > 0] / len(cut)
        plain = self._each(states, rows.tokens, before).sum() / before.sum().clamp(min=1)
        return (drafted + self.weight * plain) / (1 + self.weight)

    def _each(self, states: Tensor, tokens: Tensor, wanted: Tensor) -> Tensor:
        """Return the cross-entropy of each wanted token, as predicted by the row before it."""
        row, at = wanted.nonzero(as_tuple=True)
        logits = self.model.logits(states[row, at - 1])
        return F.cross_entropy(logits, tokens[row, at], reduction="none")

    def export(self, folder: Path) -> None:
        super().export(folder)
        change_config(folder / MODEL, self.checkpoint.config.layers, shift=True)


def continued(
    cut: NDArray[np.int64], end: NDArray[np.int64], length: int, random: np.random.Generator
) -> Weights:
    """Stage I: mask each token after the cut with a probability t that is drawn for each text.

    A mask has the weight 1 / (t times the number of tokens after the cut).

    Args:
        cut, end: int64 [B]; 0 < cut < end <= length.
    """
    weights = np.zeros((len(cut), length))
    for row, first, last in zip(weights, cut, end, strict=True):
        share = random.uniform(LEAST_SHARE, 1.0)
        masked = first + np.flatnonzero(random.random(last - first) < share)
        row[masked] = 1.0 / (share * (last - first))
    return weights


def refined(
    cut: NDArray[np.int64], end: NDArray[np.int64], length: int, reach: int, base: float,
    random: np.random.Generator,
) -> Weights:  # fmt: skip
    """Stage II: mask R tokens after the cut, R uniform in 1..``reach``.

    Mask i (from 1) has the weight base^(R - i), divided by the sum of these weights in its text.
    """
    weights = np.zeros((len(cut), length))
    for row, first, last in zip(weights, cut, end, strict=True):
        count = min(int(random.integers(1, reach + 1)), last - first)
        parts = base ** np.arange(count - 1, -1, -1.0)
        row[first : first + count] = parts / parts.sum()
    return weights
