"""Credit tokens that were predicted again and again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.logits import Logits
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.loop import policy
from paradecode.methods.canvas.policies.base import Wrapper
from paradecode.methods.parts import choice, parameter, part

EMPTY = -1
"""Content of a slot that holds no token."""


@policy(
    "credit",
    paper="CreditDecoding: Accelerating Parallel Decoding in Diffusion Large Language Models with "
    "Trace Credits",
    arxiv="2510.06133",
    aliases=("credit-decoding",),
    names={"alpha": "weight", "beta": "decay", "gamma": "exponent"},
)
@dataclass
class Credit(Wrapper):
    """Raise the logits of tokens that a position predicted before; then decide as the base does.

    In each forward the best token of a masked position earns its probability to the power of
    ``exponent``, all earlier credit decays, and ``weight`` * log(1 + credit) is added to the
    logits. Defaults as in dInfer; the paper's form without parameters is ``schedule=mask_ratio``.

    A position holds credit for as many tokens as it has ``slots``, the smallest is given up when
    they are full; 0 holds all of them, which is the dense form: only tokens that were best once
    have any credit.

    When: long canvases, where the right token shows early but stays below the threshold for long.
    In short blocks there is little to gain.
    """

    base: str = part("threshold(threshold=0.8)", "policy", "policy underneath")
    weight: float = parameter(0.7, 0.0, 100.0, "of log(1 + credit) in the logits")
    decay: float = parameter(0.8, 0.0, 1.0, "what is left of a credit after a forward")
    exponent: float = parameter(0.2, 0.0, 1e6, "of the probability that is earned")
    schedule: str = choice(
        "fixed", ("fixed", "mask_ratio"), "mask_ratio: weight and decay are 1 - masks / all"
    )
    slots: int = parameter(0, 0, 64, "tokens with credit at a position; 0: all")

    def start(self, canvas: Canvas) -> None:
        self.canvas, self.all_masks = canvas, max(int(canvas.masked.sum()), 1)
        self.tokens = np.full((canvas.end, max(self.slots, 1)), EMPTY, np.int32)
        self.credit = np.zeros(self.tokens.shape)
        super().start(canvas)

    def fuse(self, logits: Logits, positions: NDArray[np.int64]) -> Logits:
        weight, decay, exponent = self.weight, self.decay, self.exponent
        if self.schedule == "mask_ratio":
            weight = decay = 1.0 - self.canvas.masked.sum() / self.all_masks
            exponent = 1.0
        best = logits.argmax()
        earned = np.exp(logits.log_probability(best[:, None])[:, 0] * exponent)
        self.credit[positions] *= decay
        masked = self.canvas.masked[positions]
        self._earn(positions[masked], best[masked], earned[masked])
        added = (weight * np.log1p(self.credit[positions])).astype(np.float32)
        tokens = self.tokens[positions]
        biases = [
            (ids[ids != EMPTY], values[ids != EMPTY])
            for ids, values in zip(tokens, added, strict=True)
        ]
        return super().fuse(logits.with_bias(biases), positions)

    def _earn(
        self, at: NDArray[np.int64], best: NDArray[np.int32], earned: NDArray[np.float64]
    ) -> None:
        """Add credit in the slot that holds the token, else in an empty slot, else in the slot
        with the least."""
        held = self.tokens[at] == best[:, None]
        known = held.any(axis=1)
        if self.slots == 0 and not (known | (self.tokens[at] == EMPTY).any(axis=1)).all():
            self.tokens = np.pad(self.tokens, ((0, 0), (0, 1)), constant_values=EMPTY)
            self.credit = np.pad(self.credit, ((0, 0), (0, 1)))
            held = self.tokens[at] == best[:, None]
        value = np.where(self.tokens[at] == EMPTY, -1.0, self.credit[at])
        slot = np.where(known, held.argmax(axis=1), value.argmin(axis=1))
        before = np.where(known, self.credit[at, slot], 0.0)
        self.tokens[at, slot], self.credit[at, slot] = best, before + earned
