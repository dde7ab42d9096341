"""Measure a head's gain on this machine: decode held-out prompts with it and without, in turns."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from paradecode.llm import LLM
from paradecode.timing.warm_up import warm_up
from paradecode_lab.training.decoding import Progress


@dataclass(frozen=True)
class HeadSpeed:
    """The result of decoding some prompts greedily, one at a time.

    Attributes:
        speedup: seconds of plain decoding divided by seconds with the head.
        tokens_a_forward: mean number of tokens per forward with the head.
        equal: number of outputs that equal those of plain decoding.
        outputs: number of all outputs.
    """

    speedup: float
    tokens_a_forward: float
    equal: int
    outputs: int


def head_speed(
    llm: LLM, prompts: Sequence[Sequence[int]], decoder: str, max_tokens: int, tick: Progress
) -> HeadSpeed:
    """Decode each prompt plainly and with ``decoder``, and compare.

    Raises:
        Exception: the error of a request, if one failed.
    """
    seconds, tokens, forwards, equal = [0.0, 0.0], 0, 0, 0
    warm_up(llm, [decoder])
    for number, prompt in enumerate(prompts, 1):
        made = []
        for which, spec in enumerate((None, decoder)):
            begun = time.perf_counter()
            made.append(llm.complete([prompt], decoder=spec, seed=0, max_tokens=max_tokens)[0])
            seconds[which] += time.perf_counter() - begun
        if made[1].error is not None:
            raise made[1].error
        equal += made[0].token_ids == made[1].token_ids
        tokens, forwards = tokens + made[1].stats.generated, forwards + made[1].stats.forwards
        tick(number, len(prompts))
    return HeadSpeed(seconds[0] / seconds[1], tokens / forwards, equal, len(prompts))
