"""Secondary remasking follows a schedule of masks, and masks decided positions again."""

import numpy as np
import pytest
from canvases import ATTENTION, run, steps, toy
from views import canvas_of, view_of

from paradecode.methods.canvas.canvas import Progress
from paradecode.methods.canvas.policies.llada import LateEnd
from paradecode.methods.canvas.policies.remask import Remask


def left_after(sequence) -> list[int]:
    """Return how many masks are left after each step."""
    left, found = steps(sequence)[0].length, []
    for step in steps(sequence):
        left += len(step.revoked) - len(step.offsets)
        found.append(left)
    return found


@pytest.mark.parametrize("kind", ATTENTION)
def test_both_forms_revoke_and_end(kind: str) -> None:
    for form in ("form=released", "form=paper,least=1.0"):
        made = run(toy(kind, 1000), f"remask({form},blocks=full)", seed=1, max_tokens=25)
        revoked = [at for step in steps(made) for at in step.revoked]
        assert revoked
        assert made.forwards <= 12
        if "paper" in form:
            assert len(set(revoked)) == len(revoked)  # Once each by default.
        assert left_after(made)[-1] == 0


def test_without_noise_the_best_are_kept() -> None:
    canvas = canvas_of(6)
    confidence = np.array([0.9, 0.2, 0.8, 0.3, 0.7, 0.4])
    policy = Remask(form="paper", noise=0.0)
    policy.start(canvas)
    view = view_of(confidence, canvas=canvas, progress=Progress(3, 0, 0, 6, 6, 0))
    assert policy.decide(view).commit.tolist() == [0]  # floor(6 cos 30 degrees) = 5 stay.
    canvas.commit(np.array([0]), np.array([0], np.int32))
    policy.round = 1
    view = view_of(confidence, canvas=canvas, progress=Progress(3, 1, 1, 6, 6, 0))
    assert policy.decide(view).commit.tolist() == [2, 4]  # floor(6 cos 60 degrees) = 3 stay.


@pytest.mark.parametrize("form", ["released", "paper"])
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_an_end_of_text_without_confidence_stays_masked(form: str, noise: float) -> None:
    canvas = canvas_of(6)
    canvas.stops = (1, 4)  # Position k proposes token k.
    policy = LateEnd(base=f"remask(form={form},noise={noise})")
    policy.start(canvas)
    confidence = np.array([0.9, 0.99, 0.8, 0.3, 0.99, 0.4])
    view = view_of(confidence, canvas=canvas, progress=Progress(2, 0, 0, 6, 6, 0))
    commit = policy.decide(view).commit.tolist()
    assert len(commit) == 2  # floor(6 cos 45 degrees) = 4 stay.
    assert not {1, 4} & set(commit)


def test_planted_mistake_is_taken_back() -> None:
    """The paper's form masks a token again to which the model now gives a low probability."""
    canvas = canvas_of(6)
    policy = Remask(form="paper", noise=0.0, drop=0.5, least=0.0)
    policy.start(canvas)
    first = np.array([0.9, 0.2, 0.8, 0.3, 0.7, 0.4])
    policy.decide(view_of(first, canvas=canvas, progress=Progress(3, 0, 0, 6, 6, 0)))
    canvas.commit(np.array([0]), np.array([0], np.int32))
    second = np.full((6, 12), 0.0)
    second[:, 11] = -np.inf
    second[0, 5] = 9.0  # Now it would say 5 there.
    view = view_of(logits=second, canvas=canvas, progress=Progress(3, 1, 1, 6, 6, 0))
    decision = policy.decide(view)
    assert decision.revoke.tolist() == [0]
    canvas.revoke(decision.revoke)
    canvas.commit(decision.commit, np.ones(len(decision.commit), np.int32))
    last = policy.decide(view_of(logits=second, canvas=canvas, progress=Progress(3, 2, 2, 6, 6, 0)))
    assert set(last.commit.tolist()) == set(np.flatnonzero(canvas.masked).tolist())


def test_revoked_text_was_never_shown() -> None:
    made = run(toy("full", 1000), "remask(block_length=8,steps=24)", seed=2)
    shown = 0
    for step in made.trace:
        assert all(at >= shown for at in step.canvas.revoked)
        shown += len(step.tokens)
