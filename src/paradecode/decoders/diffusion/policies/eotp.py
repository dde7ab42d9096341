"""Drop the canvas behind an end of text."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from paradecode.decoders.diffusion.method import policy
from paradecode.decoders.diffusion.view import Decision, View
from paradecode.decoders.diffusion.wrapper import Wrapper
from paradecode.decoders.registry import choice

DECIDED, GUESSED = "decided", "guessed"
ENDS = (DECIDED, GUESSED)


def cut(view: View, decision: Decision, when: str) -> Decision:
    """The decision, with the canvas cut behind an end of text.

    That is the first one that it commits. If it commits none and ``when`` is ``guessed``, the most
    probable one that is proposed for any masked position, decided or not.
    """
    stops = np.array(view.canvas.stops, np.int32)
    rows = view.rows(decision.commit)
    tokens = view.proposals[rows] if decision.tokens is None else decision.tokens
    ends = decision.commit[np.isin(tokens, stops)]
    if not len(ends) and when == GUESSED:
        masked = view.canvas.masked[view.positions] & np.isin(view.proposals, stops)
        guesses = np.flatnonzero(masked)
        ends = view.positions[guesses[view.confidence[guesses].argmax()]][None] if masked.any() else ends
    if not len(ends):
        return decision
    end = int(ends.min()) + 1
    return decision if decision.truncate is not None else replace(decision, truncate=end)


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
    """

    when: str = choice(DECIDED, ENDS, "what counts as an end: a committed one, or any proposal")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.when == GUESSED:
            self.observes = "canvas"

    def decide(self, view: View) -> Decision:
        return cut(view, self.inner.decide(view), self.when)
