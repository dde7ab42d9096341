"""Rows that help later drafts more than this one: whether they pay, and what they begin with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.core.noise import Purpose, uniform
from paradecode.core.sequence import TokenSequence
from paradecode.methods.draft.budgets.base import Budget


def random_tokens(seq: TokenSequence, count: int) -> list[int]:
    """Tokens of the text at random places, by the request's own noise."""
    where = uniform(seq.sampler.noise_key(0, Purpose.DRAFT), np.arange(count))
    return seq.tokens[(where * len(seq.tokens)).astype(np.int64)].tolist()


@dataclass
class Exploration:
    """Drafts such rows as a whole or not at all: a budget that weighs nodes one by one never would.

    They pay while the tokens that drafts gain a step, as of late, are worth what the whole costs.
    Once they do not, there is nothing new to learn from, and the rest of the request goes on
    without.
    """

    gain: float = 1.0

    def pays(self, seq: TokenSequence, budget: Budget, nodes: int, explore: str) -> bool:
        """True also while nothing was measured, and where the budget does not weigh costs.

        Args:
            explore: ``always`` drafts them whatever they cost, ``auto`` asks.
        """
        base = budget.step_seconds(seq, 1)
        if base is None or explore == "always":
            return True
        alone = 1 + seq.neighbours
        return (alone + self.gain) * base > alone * (budget.step_seconds(seq, 1 + nodes) or base)

    def book(self, accepted: int) -> None:
        """Note how many draft tokens a step accepted."""
        self.gain += 0.1 * (accepted - self.gain)
