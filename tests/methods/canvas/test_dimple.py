"""Dimple: its threshold, its schedule, and placed tokens, which other methods have as well."""

import numpy as np
import pytest
from canvases import ATTENTION, MASK, offsets, run, toy
from views import canvas_of, view_of

from paradecode.core.errors import InvalidInput
from paradecode.methods.canvas.canvas import Progress
from paradecode.methods.canvas.policies.base import times
from paradecode.methods.canvas.policies.dream import Dimple
from paradecode.methods.specs import parse


def test_schedule_is_dreams_without_its_empty_steps() -> None:
    """From any state the fallback commits as many positions as the rule of the model card."""
    rng = np.random.default_rng(1)
    time = times(16, 1e-3).tolist()
    for _ in range(300):
        canvas = canvas_of(16)
        decided = rng.choice(16, int(rng.integers(0, 15)), replace=False)
        canvas.commit(decided, np.zeros(len(decided), np.int32))
        step = int(rng.integers(0, 15))
        view = view_of(rng.uniform(0.1, 0.9, 16), canvas=canvas,
                       progress=Progress(16, step, step, 16, 16, 0))  # fmt: skip
        policy = Dimple(threshold=1.0)
        policy.start(canvas)
        policy.block, policy.step = 0, step
        masks = 16 - len(decided)
        left, expected = masks / 16, masks
        for later in range(max(step + 1, next(i for i, t in enumerate(time) if t < left)), 16):
            if int(masks * (1 - time[later] / left)) >= 1:
                expected = int(masks * (1 - time[later] / left))
                break
        assert len(policy.decide(view).commit) == expected


def test_the_last_time_commits_all() -> None:
    """The last step commits all masks that are left.

    With two masks before step 14 of 16 no step but the last commits any.
    """
    canvas = canvas_of(16)
    canvas.commit(np.arange(14), np.zeros(14, np.int32))
    view = view_of(np.full(16, 0.5), canvas=canvas, progress=Progress(16, 14, 14, 16, 16, 0))
    policy = Dimple(threshold=1.0)
    policy.start(canvas)
    policy.block, policy.step = 0, 14
    assert policy.decide(view).commit.tolist() == [14, 15]


def test_strictly_above_the_threshold() -> None:
    confidence = np.array([0.5, 0.9, 0.95, 0.2])
    for tau, expected in ((0.9, [2]), (0.89, [1, 2]), (0.95, [2])):
        policy = Dimple(threshold=tau)
        view = view_of(confidence)
        policy.start(view.canvas)
        assert policy.decide(view).commit.tolist() == expected
    never = Dimple(threshold=0.0, score="entropy")
    never.start(view.canvas)
    assert len(never.decide(view_of(confidence)).commit) == 1


def test_leftmost() -> None:
    made = run(toy("full"), "dimple(threshold=1,score=autoregressive,steps=6)")
    assert offsets(made) == [(0,), (1,), (2,), (3,), (4,), tuple(range(5, 24))]
    made = run(toy("full"), "dimple(threshold=1,score=autoregressive)")
    assert [at for step in offsets(made) for at in step] == list(range(24))


def test_random_subset_is_of_the_seed() -> None:
    made = [offsets(run(toy("full"), "dimple(threshold=1,alg=origin)", seed=s)) for s in (1, 1, 2)]
    assert made[0] == made[1] != made[2]


@pytest.mark.parametrize("kind", ATTENTION)
def test_placed_tokens_stay(kind: str) -> None:
    for blocks in ("full", "fixed"):
        for cache in ("none", "dual"):
            spec = f"dimple(prior='0:9 8, 10:7, -2:6 5',blocks={blocks},cache={cache})"
            made = run(toy(kind), spec, max_tokens=25, logprobs=0)
            assert (made.output[:2], made.output[10], made.output[-2:]) == ([9, 8], 7, [6, 5])
            decided = {at for step in offsets(made) for at in step}
            assert decided == set(range(25)) - {0, 1, 10, 23, 24}
            assert len(made.logprobs) == 25


def test_the_model_reads_what_was_placed() -> None:
    plain, placed = run(toy("full"), "dimple"), run(toy("full"), "dimple(prior='23:6')")
    assert plain.output[:23] != placed.output[:23]


@pytest.mark.parametrize("prior", [f"3:{MASK}", "24:1", "-25:1", "3:1 2,4:1", "0:" + " 4" * 24])
def test_priors_that_do_not_fit(prior: str) -> None:
    with pytest.raises(InvalidInput):
        run(toy("full"), f"dimple(prior='{prior}')")


KINDS = ["full", "block", "block-shift"]
PROMPT = (8, 5, 6, 7, 9)
"""A prompt with which 9 output tokens leave two positions of the last block of 4 hidden."""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("setting", ["dimple(prior", "assd(placed", "prophet(anchor"])
def test_a_negative_offset_counts_from_the_end_of_the_output(kind: str, setting: str) -> None:
    for offset, first in ((-2, 7), (-4, 5), (-9, 0)):
        made = run(toy(kind), f"{setting}='{offset}:11 12')", PROMPT, 9)
        assert len(made.output) == 9
        assert made.output[first : first + 2] == [11, 12]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("setting", ["dimple(prior", "assd(placed", "prophet(anchor"])
def test_what_is_not_shown_is_no_place(kind: str, setting: str) -> None:
    for placed in ("8:11 12", "9:11", "-10:11", "-1:11 12"):
        with pytest.raises(InvalidInput, match="the output has 9 positions"):
            run(toy(kind), f"{setting}='{placed}')", PROMPT, 9)
    with pytest.raises(InvalidInput, match="leave at least one position"):
        run(toy(kind), f"{setting}='0:{' 11' * 9}')", PROMPT, 9)


def test_the_answer_of_prophet_is_a_part_of_the_output() -> None:
    for start, answer in ((7, [12, 13]), (8, [13]), (9, [13]), (100, [13])):
        decoder = parse(f"prophet(answer_start={start})")()
        run(toy("block"), lambda decoder=decoder: decoder, PROMPT, 9)
        assert decoder.policy.answer.tolist() in (answer, [])
