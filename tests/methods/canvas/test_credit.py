"""Credit decides as its base does, from logits with the credit added."""

import numpy as np
import pytest
from canvases import ATTENTION, run, toy

from paradecode.core.logits import ArrayLogits
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.policies.credit import Credit

VOCABULARY, LENGTH = 11, 6
AT = np.arange(3, 3 + LENGTH)


def started(**settings) -> Credit:
    credit = Credit(**settings)
    credit.start(Canvas(np.zeros(3, np.int32), LENGTH, VOCABULARY - 1))
    return credit


def softmax(values: np.ndarray) -> np.ndarray:
    weights = np.exp(values - values.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def dense(logits: list[np.ndarray], alpha: float, beta: float, gamma: float) -> list[np.ndarray]:
    """Return the logits of a reference that stores a number for each position and token."""
    state, fused = np.zeros((LENGTH, VOCABULARY)), []
    for rows in logits:
        best = rows.argmax(-1)
        state *= beta
        state[np.arange(LENGTH), best] += softmax(rows).max(-1) ** gamma
        fused.append(rows + alpha * np.log1p(state))
    return fused


@pytest.mark.parametrize("slots", [0, VOCABULARY])
def test_equals_the_dense_state(slots: int) -> None:
    rng = np.random.default_rng(3)
    rows = [rng.normal(size=(LENGTH, VOCABULARY)) for _ in range(30)]
    credit = started(weight=0.7, decay=0.8, exponent=0.2, slots=slots)
    for given, expected in zip(rows, dense(rows, 0.7, 0.8, 0.2), strict=True):
        np.testing.assert_allclose(
            credit.fuse(ArrayLogits(given), AT).values, expected, rtol=0, atol=1e-6
        )
        assert credit.credit.max() <= 1 / (1 - 0.8)


def test_few_slots_keep_the_richest_and_the_newest() -> None:
    credit = started(decay=1.0, exponent=0.0, slots=2)
    for token in (4, 4, 5, 6, 6, 5):
        credit.fuse(ArrayLogits(np.eye(VOCABULARY)[[token] * LENGTH]), AT)
    # 5 was given up for 6, and 6 and 4 are as rich then: the first slot, 4's, is taken.
    assert credit.tokens[AT[0]].tolist() == [5, 6]
    assert credit.credit[AT[0]].tolist() == [1.0, 2.0]


def test_few_slots_are_exact_while_few_tokens_are_best() -> None:
    rng = np.random.default_rng(4)
    rows = [rng.normal(size=(LENGTH, VOCABULARY)) + 9 * (np.arange(11) < 3) for _ in range(20)]
    few, all_of_them = started(slots=3), started(slots=0)
    for given in rows:
        one, other = few.fuse(ArrayLogits(given), AT), all_of_them.fuse(ArrayLogits(given), AT)
        np.testing.assert_array_equal(one.values, other.values)


def test_repeated_predictions_become_surer_and_keep_their_rank() -> None:
    rows = np.random.default_rng(5).normal(size=(LENGTH, VOCABULARY))
    credit, last = started(), softmax(rows).max(-1)
    for _ in range(12):
        fused = credit.fuse(ArrayLogits(rows), AT)
        np.testing.assert_array_equal(fused.argmax(), rows.argmax(-1))
        sure = np.exp(fused.log_probability(fused.argmax()[:, None])[:, 0])
        assert (sure >= last - 1e-9).all()
        last = sure


def test_decided_positions_earn_nothing() -> None:
    credit = started()
    credit.canvas.commit(AT[:2], np.array([1, 2], np.int32))
    credit.fuse(ArrayLogits(np.random.default_rng(6).normal(size=(LENGTH, VOCABULARY))), AT)
    assert (credit.credit[AT] > 0).any(axis=1).tolist() == [False] * 2 + [True] * 4


def test_mask_ratio_starts_without_credit() -> None:
    """The weight and the decay equal the share of positions that are decided.

    At first every position is masked and both are 0.
    """
    rows = np.random.default_rng(7).normal(size=(LENGTH, VOCABULARY))
    credit = started(schedule="mask_ratio")
    np.testing.assert_array_equal(credit.fuse(ArrayLogits(rows), AT).values, rows)
    credit.canvas.commit(AT[:2], np.array([1, 2], np.int32))
    p, best = softmax(rows).max(-1), rows.argmax(-1)
    expected = rows.copy()
    expected[np.arange(LENGTH), best] += np.log1p(p / 3 + np.where(np.arange(6) < 2, 0, p)) / 3
    fused = credit.fuse(ArrayLogits(rows), AT).values
    np.testing.assert_allclose(fused, expected, atol=1e-6)


def test_needs_no_more_forwards_on_a_model_that_keeps_its_mind() -> None:
    for kind in ATTENTION:
        plain = run(toy(kind, 0), "threshold(threshold=0.95)")
        assert run(toy(kind, 0), "credit(base=threshold(threshold=0.95))").forwards < plain.forwards
