"""A policy that commits the tokens which a trained filter takes for final."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from paradecode.core.decoder import Apply
from paradecode.methods.canvas.canvas import Decision, View
from paradecode.methods.canvas.method import policy
from paradecode.methods.canvas.networks import UnmaskFilter
from paradecode.methods.canvas.policies.base import Wrapper
from paradecode.methods.canvas.policies.eotp import DECIDED, ENDS, GUESSED, cut, refuse_revising
from paradecode.methods.parts import choice, local_path, parameter

COMMAND = "paradecode train unmask-filter"
OFF = "off"
DECIDED_INPUT = 1.0
"""Input of the filter at positions whose confidence a forward does not give, or that do not
exist."""


@policy(
    "learn2pd",
    paper="Learning to Parallel: Accelerating Diffusion Large Language Models via Learnable "
    "Parallel Decoding",
    arxiv="2509.25188",
    training=COMMAND,
    aliases=("learning-to-parallel", "l2p"),
)
@dataclass
class Learn2PD(Wrapper):
    """Commit what a trained filter takes for final, and what the policy underneath commits.

    The filter reads the probabilities of the best tokens at all positions of the block, decided
    ones included. A block that is shorter than the one it was trained for is filled up, a longer
    one is judged in pieces. ``end`` is ``eotp``: where the canvas is cut behind an end of text.

    When: there are prompts to train the filter with, in place of a threshold that is set by hand.
    """

    observes: Literal["masked", "window", "canvas"] = "window"

    filter: str = local_path(f"file of `{COMMAND}`")
    sure: float = parameter(0.96, 0.0, 1.0, "probability that a final proposal must exceed")
    end: str = choice(DECIDED, (*ENDS, OFF), "behind which end of text the canvas is cut")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.trained = UnmaskFilter.needed("learn2pd", self.filter, COMMAND)
        if self.end != OFF:
            refuse_revising("learn2pd", self.inner, self.base)
        if self.end == GUESSED:
            self.observes = "canvas"

    def prepare(self, view: View) -> Generator[Apply, Any, None]:
        yield from super().prepare(view)
        block = self.trained.facts["block"]
        offsets = view.positions[view.inside] - view.window.start
        pieces = np.full((int(offsets.max()) // block + 1, block), DECIDED_INPUT)
        pieces.ravel()[offsets] = view.confidence[view.inside]
        confidence = {"confidence": pieces.astype(np.float32)}
        self.chances = (yield Apply(self.trained.network, confidence)).ravel()[offsets]

    def decide(self, view: View) -> Decision:
        first = self.inner.decide(view)
        final = np.zeros(len(view.positions), bool)
        final[view.inside] = self.chances > self.sure
        final &= view.eligible & ~np.isin(view.positions, first.commit)
        decision = view.and_also(first, final) if final.any() else first
        return decision if self.end == OFF else cut(view, decision, self.end)
