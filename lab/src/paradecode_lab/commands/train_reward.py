"""`paradecode train reward`: a head that scores partial answers, for `process-reward`."""

from __future__ import annotations

from functools import partial

from paradecode.cli.options import Json, Loading, grouped, option
from paradecode_lab.commands.train_steps import Output, Samples, logged, ready, trained


@grouped
def reward(
    output: Output,
    loading: Loading,
    task: list[str] = option(["sums"], "A task with checkable answers; repeat for more."),
    limit: int = option(60, "Instances of the tasks.", min=3, max=100000),
    answers: int = option(4, "Answers to each.", min=1, max=64),
    cuts: int = option(4, "Places of an answer that are continued.", min=1, max=64),
    rollouts: int = option(4, "Continuations of each place.", min=1, max=64),
    temperature: float = option(0.8, "Of answers and continuations."),
    max_tokens: int = option(96, "Most tokens of an answer.", min=2),
    seed: int = option(0, "Of the answers, the split and the weights."),
    blocks: int = option(0, "Residual blocks; without any the head is logistic.", min=0, max=16),
    epochs: int = option(40, "Passes over the samples.", min=1, max=10000),
    samples: Samples = None,
    as_json: Json = False,
) -> None:
    """A process reward: how likely does what is written lead to a right answer?"""
    ready(output, samples)
    from paradecode.search.scorers.reward_model import RewardHead
    from paradecode_lab.training.acceptance.head_fit import HeadReport, HeadSettings, fit_head
    from paradecode_lab.training.acceptance.head_samples import HeadSamples
    from paradecode_lab.training.decoding import Progress
    from paradecode_lab.training.reward.samples import RewardWorkload, record_reward_samples

    workload = RewardWorkload(
        tuple(task), limit, answers, cuts, rollouts, temperature, seed, max_tokens
    )
    workload.params(0)  # Refuse a bad setting before a model is loaded.
    settings = HeadSettings(blocks, rejection_weight=1.0, epochs=epochs, seed=seed)
    with loading.open() as llm:
        found = logged(
            HeadSamples,
            samples,
            workload.origin(llm),
            partial(record_reward_samples, llm, workload),
        )

    def fit(tick: Progress) -> tuple[RewardHead, HeadReport]:
        head, report = fit_head(found, settings, tick)
        return RewardHead(head.facts, head.tensors), report

    trained(output, f"process-reward(path='{output}')", fit, as_json)
