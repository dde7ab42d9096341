"""LocalLeap is `threshold` with a lower threshold around committed positions."""

import numpy as np
from views import view_of

from paradecode.methods.canvas.policies.threshold import LocalLeap


def test_neighbours_of_anchors() -> None:
    confidence = np.array([0.95, 0.8, 0.1, 0.8, 0.8, 0.74, 0.8, 0.92, 0.76])
    at = 5 + np.arange(9)
    for radius, expected in ((0, [0, 7]), (1, [0, 1, 6, 7, 8]), (2, [0, 1, 6, 7, 8]),
                             (3, [0, 1, 3, 4, 6, 7, 8])):  # fmt: skip
        made = LocalLeap(radius=radius).decide(view_of(confidence, start=5))
        assert made.commit.tolist() == at[expected].tolist()


def test_anchors_are_in_the_window_and_do_not_cascade() -> None:
    confidence = np.array([0.99, 0.8, 0.8, 0.8, 0.99])
    view = view_of(confidence, window=(1, 4))
    assert LocalLeap(radius=2).decide(view).commit.tolist() == [1]  # No anchor: the best one.
    confidence[1] = 0.9
    view = view_of(confidence, window=(1, 4))
    assert LocalLeap(radius=1).decide(view).commit.tolist() == [1, 2]  # 2 does not reach 3.


def test_the_released_rule_with_its_sets() -> None:
    """Decisions equal the released rule, written with its loops and sets of neighbours.

    The best position is always committed.
    """
    rng = np.random.default_rng(4)
    alone = relaxed = 0
    for _ in range(300):
        start, count = int(rng.integers(0, 9)), int(rng.integers(1, 20))
        confidence = rng.uniform(0.3, 1.0, count) ** 0.3
        radius = int(rng.integers(0, 5))
        view = view_of(confidence, start=start)
        at = range(start, start + count)
        anchors = [p for p, c in zip(at, confidence, strict=True) if c >= 0.95]
        near = {p for a in anchors for p in range(a - radius, a + radius + 1)}
        wanted = {start + int(confidence.argmax())}
        for p, c in zip(at, confidence, strict=True):
            if anchors and c >= (0.9 if p in near else 0.95):
                wanted.add(p)
        made = LocalLeap(threshold=0.95, relaxed=0.9, radius=radius).decide(view)
        assert set(made.commit.tolist()) == wanted
        alone += not anchors
        relaxed += len(wanted) > len(anchors) > 0
    assert min(alone, relaxed) > 20
