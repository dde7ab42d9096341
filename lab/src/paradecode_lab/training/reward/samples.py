"""Record samples for a process reward: a partial answer, and whether it led to a right answer.

The labels follow Math-Shepherd (Wang et al. 2023, arXiv 2312.08935): the model itself continues
each partial answer several times, and the share of right answers rates it. Here every continuation
is one sample, right or wrong, so the cross-entropy equals that of the share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Decoder
from paradecode.core.errors import InvalidInput
from paradecode.core.noise import Purpose, key
from paradecode.core.sampling import SamplingParams
from paradecode.engine.prompt import LastStateReader
from paradecode.engine.sequence import LiveSequence
from paradecode.llm import LLM
from paradecode.methods.draft.budgets.networks import HIDDEN
from paradecode_lab.measure.tasks.questions import CHECKED
from paradecode_lab.measure.tasks.task import Task, TaskInstance
from paradecode_lab.training.acceptance.head_samples import HeadSamples
from paradecode_lab.training.decoding import Progress, decode_all
from paradecode_lab.training.samples import Origin


@dataclass(frozen=True)
class RewardWorkload:
    """Settings of the samples for a process reward.

    Attributes:
        tasks: names of tasks, taken in turn.
        limit: number of task instances, from the training part of the tasks.
        answers: number of sampled answers to each instance.
        cuts: number of places in each answer that give samples; the last is the answer's end.
        rollouts: number of continuations from each place. The end needs none; it gets the same
            weight.
        temperature, seed, max_tokens: sampling parameters of the answers.

    Raises:
        InvalidInput: for a task that does not exist.
    """

    tasks: tuple[str, ...] = ("sums",)
    limit: int = 60
    answers: int = 4
    cuts: int = 4
    rollouts: int = 4
    temperature: float = 0.8
    seed: int = 0
    max_tokens: int = 96

    def __post_init__(self) -> None:
        for name in self.tasks:
            if name not in CHECKED:
                raise InvalidInput("--task", name, f"use some of {', '.join(CHECKED)}")

    def instances(self) -> list[tuple[Task, TaskInstance]]:
        random = Random(f"reward/{self.seed}")
        chosen = [CHECKED[self.tasks[place % len(self.tasks)]] for place in range(self.limit)]
        return [(task, task.draw(random, held_out=False)) for task in chosen]

    def params(self, number: int) -> SamplingParams:
        """Return the sampling parameters of the answer with this index."""
        seed = key(self.seed, number, Purpose.CHILD_SEED)
        return SamplingParams(
            max_tokens=self.max_tokens, temperature=self.temperature, seed=seed, logprobs=0
        )

    def origin(self, llm: LLM) -> Origin:
        """Return digests of everything that the samples depend on."""
        return Origin.of(llm, (self, llm.model, llm.backend.name))


def record_reward_samples(llm: LLM, workload: RewardWorkload, progress: Progress) -> HeadSamples:
    """Sample answers, continue each from several places, and record the states there.

    Returns:
        Samples whose ``inputs`` are the target's last hidden states. ``accepted`` says whether the
        answer became right, and ``probability`` is the geometric mean probability of the tokens so
        far.
    """
    given = workload.instances()
    prompts = [_prompt(llm, instance.prompt) for _, instance in given]
    answers = _sampled(
        llm, [ids for ids in prompts for _ in range(workload.answers)], workload, 0, progress
    )
    starts, owners, chances = list[list[int]](), list[int](), list[float]()
    rights = list[bool | None]()
    for number, answer in enumerate(answers):
        owner = number // workload.answers
        length = len(answer.output) - (answer.output[-1] in llm.config.eos_tokens)
        ends = np.linspace(0, length, workload.cuts + 1).round().astype(int)
        for end in sorted({*ends[1:].tolist()} - {0}):
            whole = end == length
            starts.append([*prompts[owner], *answer.output[:end]])
            owners.append(owner)
            chances.append(np.exp(np.mean([one.logprob for one in answer.logprobs[:end]])))
            rights.append(_right(llm, given[owner], answer.output) if whole else None)
    states = _states(llm, starts, progress)
    open_ = [place for place, right in enumerate(rights) if right is None]
    again = [place for place in open_ for _ in range(workload.rollouts)]
    endings = _sampled(llm, [starts[place] for place in again], workload, len(answers), progress)
    # The end of an answer gets as many samples as a place that was continued ``rollouts`` times.
    known = [(place, right) for place, right in enumerate(rights) if right is not None]
    outcomes = known * workload.rollouts
    for place, ending in zip(again, endings, strict=True):
        owner = owners[place]
        output = [*starts[place][len(prompts[owner]) :], *ending.output]
        outcomes.append((place, _right(llm, given[owner], output)))
    places = [place for place, _ in outcomes]
    return HeadSamples(
        reads=HIDDEN,
        inputs=states[places],
        accepted=np.array([right for _, right in outcomes], np.float32),
        probability=np.array([chances[place] for place in places], np.float32),
        prompt=np.array([owners[place] for place in places], np.float32),
    )


def _prompt(llm: LLM, text: str) -> list[int]:
    if llm.chat_template is None:
        return llm.encode(text)
    return llm.chat_tokens([{"role": "user", "content": text}])


def _right(llm: LLM, asked: tuple[Task, TaskInstance], output: Sequence[int]) -> bool:
    task, instance = asked
    return task.check(instance, llm.tokenizer.decode(output))


def _sampled(
    llm: LLM, prompts: list[list[int]], workload: RewardWorkload, first: int, progress: Progress
) -> list[LiveSequence]:
    params = [workload.params(first + number) for number in range(len(prompts))]
    room = llm.config.context_length
    params = [
        replace(one, max_tokens=min(one.max_tokens, room - len(ids)))
        for one, ids in zip(params, prompts)
    ]
    return decode_all(llm, prompts, lambda number: llm.decoder(), params, progress)


def _states(llm: LLM, starts: list[list[int]], progress: Progress) -> NDArray[np.float32]:
    """Return the last states, float32 [starts, hidden size], before the final norm."""
    readers = [LastStateReader() for _ in starts]

    def reader(number: int) -> Decoder:
        return readers[number]

    decode_all(llm, starts, reader, [SamplingParams(max_tokens=1)] * len(starts), progress)
    return np.stack([one.output for one in readers])
