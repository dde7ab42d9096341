"""A policy that commits the tokens which a trained filter takes for final."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from paradecode.core.decoder import Apply
from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.canvas import Decision, View
from paradecode.methods.canvas.loop import policy
from paradecode.methods.canvas.networks import UnmaskFilter
from paradecode.methods.canvas.policies.base import Policy, Wrapper
from paradecode.methods.parts import choice, local_path, parameter

DECIDED, GUESSED = "decided", "guessed"
ENDS = (DECIDED, GUESSED)


def cut(view: View, decision: Decision, when: str) -> Decision:
    """The decision, with the canvas cut behind an end of text.

    The end is the first one that the decision commits. If it commits none and ``when`` is
    ``guessed``, the end is the most probable one that is proposed for any masked position, decided
    now or not.
    """
    if decision.truncate is not None:
        return decision
    stops = np.array(view.canvas.stops, np.int32)
    ends = decision.commit[np.isin(view.tokens(decision), stops)]
    if len(ends):
        return replace(decision, truncate=int(ends.min()) + 1)
    proposed = view.canvas.masked[view.positions] & np.isin(view.proposals, stops)
    if when != GUESSED or not proposed.any():
        return decision
    best = np.where(proposed, view.confidence, -1.0).argmax()
    return replace(decision, truncate=int(view.positions[best]) + 1)


def refuse_revising(method: str, inner: Policy, base: str) -> None:
    """Raise InvalidInput if the policy could mask a committed end of text again."""
    if inner.revises:
        fix = "use one that keeps what it commits: an end that is revoked does not end the text"
        raise InvalidInput(f"{method}.base", base, fix)


@policy(
    "eotp",
    paper="Learning to Parallel: Accelerating Diffusion Large Language Models via Learnable "
    "Parallel Decoding",
    arxiv="2509.25188",
    aliases=("end-of-text-prediction",),
)
@dataclass
class EoTP(Wrapper):
    """Drop the canvas behind an end of text that the policy underneath commits.

    What is decided before it stays as it is; the forwards that follow have fewer rows, and in a
    model whose rows all see one another, other predictions. ``when=guessed`` is the released code:
    in every forward it also cuts behind the most probable end that is merely proposed, anywhere on
    the canvas, which shortens answers where the model is not sure of their length.

    When: the canvas is much longer than the answer. It can stand on any policy.
    """

    when: str = choice(DECIDED, ENDS, "what counts as an end: a committed one, or any proposal")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_revising("eotp", self.inner, self.base)
        if self.when == GUESSED:
            self.observes = "canvas"

    def decide(self, view: View) -> Decision:
        return cut(view, self.inner.decide(view), self.when)


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
