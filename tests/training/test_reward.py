"""`paradecode train reward`: labels that are known beforehand, and a file that search can use."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from train_command import run

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode_lab.measure.tasks.questions import CHECKED, QUESTIONS
from paradecode_lab.training.reward.samples import RewardWorkload, record_reward_samples

MODEL = "paradecode/tiny-autoregressive"
SMALL = RewardWorkload(("reverse",), limit=3, answers=2, cuts=3, rollouts=2, max_tokens=24)


@pytest.mark.parametrize("name", QUESTIONS)
def test_questions_know_their_answers(name: str) -> None:
    task = QUESTIONS[name]
    for instance in task.held_out(20):
        assert task.check(instance, f"Let us see. The answer is {instance.answer}.")
        assert not task.check(instance, f"The answer is {int(instance.answer) + 1}.")
        assert int(instance.answer) >= 0


def test_samples_say_what_became_of_each_place(llm: LLM) -> None:
    """At temperature 0 all labels of an answer say whether the answer is right.

    Every continuation then equals the answer itself.
    """
    greedy = replace(SMALL, temperature=0.0, answers=1)
    found = record_reward_samples(llm, greedy, lambda done, total: None)
    for owner, (task, instance) in enumerate(greedy.instances()):
        answer = llm.chat([{"role": "user", "content": instance.prompt}], max_tokens=24)
        right = task.check(instance, answer.text)
        own = found.accepted[found.prompt == owner]
        assert (own == right).all()
        assert len(own) == 3 * 2  # The end, and two places with two continuations.
    assert found.inputs.shape == (len(found), llm.config.hidden_size)
    assert len(np.unique(found.inputs, axis=0)) == 3 * 3
    assert ((found.probability > 0) & (found.probability <= 1)).all()
    again = record_reward_samples(llm, greedy, lambda done, total: None)
    np.testing.assert_array_equal(found.inputs, again.inputs)


def test_sampled_answers_differ(llm: LLM) -> None:
    found = record_reward_samples(llm, replace(SMALL, temperature=2.0), lambda d, t: None)
    assert len(np.unique(found.inputs, axis=0)) > 3 * 3
    assert {0.0} < {*found.accepted.tolist()} <= {0.0, 1.0}


def test_samples_are_of_these_weights(llm: LLM) -> None:
    ours = SMALL.origin(llm)
    assert replace(SMALL, seed=1).origin(llm).workload != ours.workload
    with LLM("paradecode/graded-autoregressive") as other:
        other.model = llm.model
        theirs = SMALL.origin(other)
    assert theirs.workload == ours.workload
    assert theirs.weights != ours.weights


def test_tasks_that_do_not_exist() -> None:
    with pytest.raises(InvalidInput, match="--task"):
        RewardWorkload(("nothing",))
    assert "sums" in CHECKED


@pytest.mark.wide
def test_the_command(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out, samples = tmp_path / "out.reward", tmp_path / "samples"
    arguments: list[Any] = [
        "--model", MODEL, "--task", "addition", "--task", "word-problem", "--limit", 24,
        "--answers", 3, "--rollouts", 2, "--max-tokens", 60, "--temperature", 1.7, "--epochs", 3,
        "--samples", samples, "--json",
    ]  # fmt: skip
    report = json.loads((said := run("reward", out, *arguments))[said.index("{") :])
    assert report["training"] > 100
    assert 0 < report["rate"] < 1
    written = out.read_bytes()
    run("reward", out, *arguments)  # From the samples.
    assert out.read_bytes() == written
    with pytest.raises(InvalidInput, match="another workload"):
        run("reward", out, *arguments, "--seed", 1)
    with LLM(MODEL) as llm:
        found = llm.chat(
            [{"role": "user", "content": "reverse: Ben Sam Art"}], search="best-of(n=4)",
            scorer=f"process-reward(path='{out}')", temperature=1.2, seed=1, max_tokens=16,
        )  # fmt: skip
        assert all(0 < score < 1 for score in found.search.scores)
