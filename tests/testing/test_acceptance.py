"""Each drafter's accepted tokens on the toy are recorded, so that a worse drafter is found."""

from dataclasses import replace

import numpy as np
import pytest

from paradecode.methods.draft import loop
from paradecode.methods.draft.drafters import token_recycling
from paradecode.methods.draft.ngram_index import NgramIndex
from paradecode.methods.parts import known
from paradecode.methods.specs import methods
from paradecode.testing.conformance import useful

RECORDED = {
    "aded": 169, "copyspec": 65, "deer": 83, "del": 34, "draft-model": 229, "input-copy": 42,
    "jacobi": 120, "layer-skip": 232, "lookahead": 67, "lookup-tree": 111, "mirror-sd": 215,
    "pearl": 139, "predicted-output": 42, "prompt-lookup": 111, "rasd": 206, "retrieval": 85,
    "s2d": 265, "stand": 149, "suffix": 153, "swift": 262, "token-recycling": 200, "triforce": 312,
}  # fmt: skip
"""Accepted draft tokens out of 360 generated tokens, equal on any machine. Every new method needs a
line; change one only if the method is meant to draft differently."""

DEAR = ("deer", "draft-model", "mirror-sd", "pearl", "s2d")
"""Drafters that run a model while they draft."""

OURS = [
    name
    for name in sorted({*known("drafter"), *known("schedule")})
    if methods()[name].training == "none"
    and methods()[name].build.__module__.startswith("paradecode.")
]


def as_recorded(name: str) -> bool:
    """Return whether a method's count is within 3 percent of the recorded one."""
    return abs(useful(name).accepted - RECORDED[name]) <= 0.03 * RECORDED[name]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.wide if n in DEAR else ()) for n in OURS]
)
def test_a_method_drafts_as_well_as_it_did(name: str) -> None:
    gain = useful(name)
    assert gain
    assert as_recorded(name), str(gain)


# Bugs that change no output: each one is planted, and must be found.


def test_an_index_that_lags_behind_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real, late = NgramIndex.extend, dict[int, list[int]]()

    def extend(index: NgramIndex, tokens: list[int]) -> None:
        before, late[id(index)] = late.get(id(index), []), list(tokens)
        real(index, before)

    monkeypatch.setattr(NgramIndex, "extend", extend)
    assert not as_recorded("prompt-lookup")


def test_an_index_that_points_one_token_too_far_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = NgramIndex.find

    def find(index: NgramIndex, recent: list[int]) -> tuple[int, int]:
        place, matched = real(index, recent)
        return min(place + 1, len(index.text) - 1) if place else 0, matched

    monkeypatch.setattr(NgramIndex, "find", find)
    assert not as_recorded("prompt-lookup")


def test_rows_that_teach_the_wrong_token_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = token_recycling.log_softmax
    monkeypatch.setattr(token_recycling, "log_softmax", lambda scores: real(np.roll(scores, 1, 0)))
    assert not as_recorded("token-recycling")


@pytest.mark.first(2)
@pytest.mark.parametrize("name", ["draft-model", "token-recycling", "stand", "aded", "swift"])
def test_noise_that_is_not_shared_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = loop.Offer
    monkeypatch.setattr(loop, "Offer", lambda *given: replace(real(*given), noise=False))
    assert not as_recorded(name)
