"""Rows that help later drafts more than the present one: whether they pay, and their first
tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.core.decoder import TokenSequence
from paradecode.core.noise import Purpose, uniform
from paradecode.methods.draft.budgets.base import Budget


def random_tokens(seq: TokenSequence, count: int) -> list[int]:
    """Tokens at random places of the text, chosen by the request's own noise."""
    where = uniform(seq.sampler.noise_key(0, Purpose.DRAFT), np.arange(count))
    return seq.tokens[(where * len(seq.tokens)).astype(np.int64)].tolist()


@dataclass
class Exploration:
    """Decides about such rows as a whole, because a budget that weighs single nodes would refuse
    each.

    The rows pay while the tokens that recent drafts gain in a step are worth the cost of all rows.
    Once they do not pay, nothing new is learned, and the rest of the request has no such rows.
    """

    gain: float = 1.0

    def pays(self, seq: TokenSequence, budget: Budget, nodes: int, explore: str) -> bool:
        """Whether to draft the rows. It is True while nothing was measured, and where costs do not
        count.

        Args:
            explore: ``always`` drafts them whatever they cost, ``auto`` weighs.
        """
        base = budget.step_seconds(seq, 1)
        if base is None or explore == "always":
            return True
        alone = 1 + seq.neighbours
        return (alone + self.gain) * base > alone * (budget.step_seconds(seq, 1 + nodes) or base)

    def book(self, accepted: int) -> None:
        """Note how many draft tokens a step accepted."""
        self.gain += 0.1 * (accepted - self.gain)
