"""Typical acceptance: the threshold is the smaller of two, and both can be set."""

from __future__ import annotations

import numpy as np
import pytest

from paradecode.core.errors import InvalidInput
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.verifiers.rule import Typical
from paradecode.methods.specs import parse

FLAT = np.array([0.05, *[0.95 / 19] * 19])
"""Much entropy: exp(-entropy) is 1 / 20."""
SHARP = np.array([0.92, 0.08])
"""Little entropy: exp(-entropy) is about 0.76."""


class Always:
    """Chance that draws the likeliest token."""

    def accept(self, p: float, q: float = 1.0) -> bool:
        raise AssertionError("typical acceptance draws no test")

    def draw(self, weights: np.ndarray) -> int:
        return int(np.argmax(weights))


def accepted(row: np.ndarray, token: int, **settings: float) -> int:
    path, _ = Typical(**settings).rule(lambda node: row, TokenTree.chain([token]), Always())
    return len(path)


def test_the_smaller_threshold_decides() -> None:
    assert Typical().threshold(FLAT) == pytest.approx(0.3 / 20, rel=1e-2)
    assert accepted(FLAT, 0) == 1  # Below 0.09, but everything is unsure here.
    assert Typical().threshold(SHARP) == 0.09  # Below 0.3 exp(-entropy), which is 0.23.
    assert accepted(SHARP, 1) == 0
    assert accepted(np.array([0.85, 0.15]), 1) == 1


def test_both_thresholds_are_settings() -> None:
    assert accepted(SHARP, 1, epsilon=0.05) == 1
    assert accepted(FLAT, 0, delta=1.0) == 0
    decoder = parse("prompt-lookup(verifier=typical(epsilon=0.2,delta=0.5))")()
    assert (decoder.verify.epsilon, decoder.verify.delta) == (0.2, 0.5)
    decoder = parse("prompt-lookup(verifier=typical(posterior_threshold=0.2))")()
    assert decoder.verify.epsilon == 0.2
    with pytest.raises(InvalidInput, match="epsilon"):
        parse("prompt-lookup(verifier=typical(epsilon=2))")
