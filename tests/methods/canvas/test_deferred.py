"""DCD commits by a threshold, and cuts the canvas at the end of the text."""

import numpy as np
from canvases import EOS, run, toy
from views import canvas_of, view_of

from paradecode.methods.canvas.policies.threshold import Deferred


def test_other_scores() -> None:
    rng = np.random.default_rng(2)
    for _ in range(50):
        logits = rng.normal(size=(10, 12)) * 4
        logits[:, 11] = -np.inf
        view = view_of(logits=logits)
        for score, values, tau in (
            ("margin", view.margin, 0.5), ("entropy", -view.entropy, -0.4),
        ):  # fmt: skip
            made = Deferred(score=score, threshold=tau).decide(view).commit
            passed = np.flatnonzero(values >= tau)
            assert made.tolist() == (passed if len(passed) else [values.argmax()]).tolist()


def test_everything_behind_a_committed_end_is_dropped() -> None:
    canvas = canvas_of(6, start=2)
    canvas.stops = (3,)
    confidence = np.array([0.95, 0.2, 0.5, 0.97, 0.99, 0.92])  # Position k proposes token k.
    view = view_of(confidence, canvas=canvas)
    decision = Deferred().decide(view)
    assert decision.commit.tolist() == [2, 5]
    assert decision.truncate == 6
    canvas.stops = (2,)  # Not sure of that one.
    assert Deferred().decide(view).truncate is None


def test_ends_early_when_a_stop_is_certain() -> None:
    """The canvas is cut where the end was committed, and the masks before it are still decoded."""
    made = run(
        toy("full", 0), "deferred(threshold=0.5,blocks=full)", ignore_eos=False,
        stop_token_ids=(25,), logit_bias={25: 50.0},
    )  # fmt: skip
    assert (len(made.output), made.forwards, made.finish_reason) == (1, 1, "stop")
    banned = run(
        toy("full", 0), "deferred(threshold=0.5,blocks=full)", ignore_eos=False,
        logit_bias={EOS: 50.0}, min_tokens=20,
    )  # fmt: skip
    assert banned.output[20:] == [EOS]
    assert banned.finish_reason == "stop"
