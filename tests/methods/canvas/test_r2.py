"""R2-dLLM's three rules only add commits."""

import numpy as np
import pytest
from views import canvas_of, view_of

from paradecode.methods.canvas.policies.remask import R2


def decide(policy: R2, confidence: list[float], tokens: list[int] | None = None, **more) -> list:
    """Return what a policy commits on a fresh canvas."""
    view = made(confidence, tokens, **more)
    policy.start(view.canvas)
    return sorted(policy.decide(view).commit.tolist())


def made(confidence, tokens=None, canvas=None):
    tokens = tokens or [k % 11 for k in range(len(confidence))]
    logits = np.full((len(confidence), 12), -np.inf)
    for row, (p, token) in enumerate(zip(confidence, tokens, strict=True)):
        logits[row, :11] = np.log((1 - p) / 10)
        logits[row, token] = np.log(p)
    return view_of(logits=logits, canvas=canvas)


def test_neighbourhoods_against_loops() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        sure = rng.uniform(0.3, 1.0, 10)
        width, gaps, theta = int(rng.integers(1, 6)), int(rng.integers(0, 3)), rng.uniform(0.6, 0.9)
        base = [int(k) for k in np.flatnonzero(sure >= 0.9)] or [int(sure.argmax())]
        marked = set(base)
        for start in range(10 - width + 1):
            masks = [k for k in range(start, start + width) if k not in base]
            if masks and width - len(masks) <= gaps and sure[masks].mean() >= theta:
                marked |= set(masks)
        policy = R2(width=width, gaps=gaps, sure=float(theta), run=0, stays=0)
        assert decide(policy, sure.tolist()) == sorted(marked)


def test_one_of_a_run() -> None:
    only = {"width": 0, "stays": 0}
    sure, tokens = [0.95, 0.5, 0.85, 0.6, 0.7, 0.82, 0.81], [1, 2, 2, 2, 3, 4, 4]
    assert decide(R2(run=2, **only), sure, tokens) == [0, 2, 5]
    assert decide(R2(run=3, **only), sure, tokens) == [0, 2]
    assert decide(R2(run=3, pick="mid", **only), sure, tokens) == [0, 2]
    assert decide(R2(run=2, pick="mid", **only), sure, tokens) == [0, 2, 6]
    assert decide(R2(run=2, sure=0.84, **only), sure, tokens) == [0, 2]
    assert decide(R2(run=2, sure=0.86, **only), sure, tokens) == [0]
    assert len(decide(R2(run=2, pick="random", **only), sure, tokens)) == 3


def test_what_persists() -> None:
    policy, canvas = R2(width=0, run=0, stays=3, steady=0.7), canvas_of(5)
    policy.start(canvas)
    rounds = [
        ([0.95, 0.75, 0.75, 0.8, 0.6], [0, 1, 2, 3, 4], [0]),
        ([0.95, 0.75, 0.75, 0.91, 0.6], [0, 1, 5, 3, 4], [3]),
        ([0.95, 0.75, 0.75, 0.9, 0.6], [0, 1, 2, 3, 4], [1]),  # And the best, which is 1, too.
        ([0.95, 0.75, 0.75, 0.9, 0.65], [0, 1, 2, 3, 4], [2]),
    ]
    for sure, tokens, expected in rounds:
        view = made(sure, tokens, canvas)
        commit = policy.decide(view).commit
        assert sorted(commit.tolist()) == expected
        canvas.commit(commit, view.proposals[commit])


@pytest.mark.parametrize(("statistic", "steady", "third"), [
    ("last", 0.55, False), ("max", 0.65, True), ("ave", 0.6, True), ("ave", 0.61, False),
])  # fmt: skip
def test_statistics(statistic: str, steady: float, third: bool) -> None:
    policy = R2(base="static", width=0, run=0, stays=3, steady=steady, statistic=statistic)
    canvas = canvas_of(4)
    policy.start(canvas)
    for step, p in enumerate((0.7, 0.6, 0.5)):
        view = made([0.9, 0.9, 0.9, p], canvas=canvas)
        commit = policy.decide(view).commit
        assert (3 in commit.tolist()) == (third and step == 2)
        canvas.commit(commit, view.proposals[commit])
