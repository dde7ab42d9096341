"""Write texts of the model that a drafter is trained for: its own answers to the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random

from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode.prompts import encoder
from paradecode_lab.measure.tasks.task import Task, stream
from paradecode_lab.training.adaptation.texts import Round, write_rounds
from paradecode_lab.training.ngrams.own_text import TOGETHER


def write_answers(
    path: Path, llm: LLM, tasks: tuple[Task, ...], count: int, max_tokens: int, seed: int,
    tick: Callable[[int, int], None],
) -> None:  # fmt: skip
    """Write the model's greedy answers to ``count`` training instances; none is held out.

    A run that was stopped continues; equal arguments give equal files.
    """
    encode, greedy = encoder(llm), SamplingParams(temperature=0.0, max_tokens=max_tokens)

    def rounds(done: int) -> Iterator[Round]:
        found = islice(stream(tasks, Random(f"answers/{seed}")), done, count)
        while some := list(islice(found, TOGETHER)):
            prompts = [encode([{"role": "user", "content": one.prompt}]) for one in some]
            answers = llm.complete(prompts, greedy, decoder=None)
            yield [(prompt, one.token_ids) for prompt, one in zip(prompts, answers, strict=True)]

    write_rounds(path, count, rounds, tick)
