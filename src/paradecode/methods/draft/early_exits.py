"""What each early exit of a model would have drafted, and which exit and length pay best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.sequence import ModelFacts, TokenSequence
from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.budgets.base import Budget, Seconds
from paradecode.methods.draft.model_drafter import ModelDrafter

MEMORY = 0.95


class EarlyExits:
    """How each exit layer has done: agreement with the target, and how sure it was."""

    def __init__(self, layers: tuple[int, ...]) -> None:
        self.layers = layers
        # Column 0: it was wrong; column 1: it was right. Before anything was seen, exits are even.
        self.count = np.full((len(layers), 2), 0.5)
        self.confidence = np.full((len(layers), 2), 0.25)

    def update(self, right: NDArray[np.bool_], confidence: NDArray[np.float64]) -> None:
        """Book a round: [E, R], whether each exit chose each target token, and how surely."""
        self.count *= MEMORY
        self.confidence *= MEMORY
        for column, which in enumerate((~right, right)):
            self.count[:, column] += which.sum(axis=1)
            self.confidence[:, column] += (which * confidence).sum(axis=1)

    def best(self, facts: ModelFacts, longest: int, rests: bool = True) -> tuple[int, int, float]:
        """(exit layer, draft length, confidence to stop below) of most tokens per layer run.

        Args:
            longest: draft.
            rests: shorter drafts and none are a choice, too.
        """
        least = 0 if rests else longest
        head = facts.head_layers
        alpha = self.count[:, 1] / self.count.sum(axis=1)
        lengths = np.arange(longest + 1)
        tokens = np.cumsum(alpha[:, None] ** lengths, axis=1)[:, least:]
        exits = np.array(self.layers)[:, None] + 1
        work = facts.layers + head + lengths[least:] * (exits + head)
        place, length = np.unravel_index(int(np.argmax(tokens / work)), tokens.shape)
        means = self.confidence[place] / self.count[place]
        return self.layers[place], least + int(length), float(means.mean())


@dataclass
class WhileSure(Budget):
    """A chain that ends with the first token its model is less sure of than ``threshold``."""

    drafter: ModelDrafter
    threshold: float

    def expand(
        self, seq: TokenSequence, tree: TokenTree, leaves: NDArray[np.int32], seconds: Seconds
    ) -> NDArray[np.int32]:
        sure = [leaf == ROOT or self.drafter.confidence(leaf) >= self.threshold for leaf in leaves]
        return super().expand(seq, tree, leaves[np.array(sure, bool)], seconds)
