"""The negative control: a verifier that is wrong on purpose. It is not a method.

A certificate that could not tell it from a right one would prove nothing: it is run in every one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paradecode.core.decoder import Decoder
from paradecode.core.errors import InvalidInput
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.loop import DraftVerify
from paradecode.methods.draft.verifiers.recursive import Rejection
from paradecode.methods.draft.verifiers.rule import Accepted, Chance, Row, Rows


class Skewed:
    """Chance that accepts with min(1, factor p / q) in place of min(1, p / q)."""

    def __init__(self, fair: Chance, factor: float) -> None:
        self._fair, self._factor = fair, factor

    def accept(self, p: float, q: float = 1.0) -> bool:
        return self._fair.accept(self._factor * p, q)

    def draw(self, weights: Row) -> int:
        return self._fair.draw(weights)


@dataclass
class BiasedRejection(Rejection):
    """Rejection sampling with skewed chance."""

    factor: float

    def rule(self, p: Rows, tree: TokenTree, chance: Chance) -> Accepted:
        return super().rule(p, tree, Skewed(chance, self.factor))


def biased(make: Callable[[], Decoder], factor: float) -> Callable[[], Decoder]:
    """The same drafts under the same budget, verified by rejection with skewed chance.

    A factor above 1 accepts too often: then too much of q, the law of the drafts, gets through,
    which is harmless where q is as good as p. A factor below 1 rejects too often: then too much of
    norm((p - q)+) gets through, which is harmless nowhere.

    Raises:
        InvalidInput: when called, if the decoder is not draft-and-verify: then there is no control.
    """

    def build() -> Decoder:
        decoder = make()
        if not isinstance(decoder, DraftVerify):
            name = type(decoder).__name__
            raise InvalidInput("decoder", name, "no control can be made: it is not a DraftVerify")
        decoder.verify = BiasedRejection(factor)
        return decoder

    return build
