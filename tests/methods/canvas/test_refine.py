"""Refine decides as its base does, and also replaces tokens that are no longer the best."""

import numpy as np
from views import canvas_of, view_of

from paradecode.methods.canvas.canvas import Progress
from paradecode.methods.canvas.policies.corrections import Refine


def decided(tokens: dict[int, int], length: int = 6):
    canvas = canvas_of(length)
    positions = np.array([*tokens], np.int64)
    start = Refine(least=0.5)
    start.start(canvas)
    canvas.commit(positions, np.array([*tokens.values()], np.int32))
    return canvas, start


CONFIDENCE = np.array([0.9, 0.6, 0.4, 0.95, 0.3, 0.7])
"""Confidences of a view whose position k proposes token k."""


def test_only_wrong_and_surely_corrected_tokens_are_written_anew() -> None:
    canvas, policy = decided({0: 0, 1: 7, 2: 7})
    decision = policy.decide(view_of(CONFIDENCE, canvas=canvas))
    assert decision.revoke.tolist() == [1]  # 0 agrees, and the model is not sure of 2.
    assert decision.commit.tolist() == [3, 1]
    assert decision.tokens.tolist() == [3, 1]


def test_share_takes_the_surest_of_all_decided() -> None:
    canvas, policy = decided({0: 7, 1: 7, 2: 7, 5: 7})
    policy.share, policy.least = 0.5, 0.0
    assert policy.decide(view_of(CONFIDENCE, canvas=canvas)).revoke.tolist() == [0, 5]


def test_last_is_a_part_of_the_steps() -> None:
    for last, step, corrects in ((0.5, 2, False), (0.5, 3, True), (1.0, 0, True)):
        canvas, policy = decided({0: 7})
        policy.last = last
        progress = Progress(6, step, step, 6, 6, 0)
        decision = policy.decide(view_of(CONFIDENCE, canvas=canvas, progress=progress))
        assert (len(decision.revoke) == 1) == corrects


def test_placed_tokens_stay() -> None:
    canvas = canvas_of(6)
    canvas.commit(np.array([1]), np.array([7], np.int32))
    policy = Refine(least=0.0)
    policy.start(canvas)
    canvas.commit(np.array([0]), np.array([7], np.int32))
    assert policy.decide(view_of(CONFIDENCE, canvas=canvas)).revoke.tolist() == [0]


def test_a_model_that_agrees_with_itself_changes_nothing() -> None:
    canvas, policy = decided({0: 0, 3: 3, 5: 5})
    decision = policy.decide(view_of(CONFIDENCE, canvas=canvas))
    assert (decision.commit.tolist(), decision.revoke.tolist()) == ([1], [])
