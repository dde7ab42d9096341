"""Exact match on held-out instances of each task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from paradecode_lab.measure.statistics import Interval, wilson
from paradecode_lab.measure.tasks.task import Task, TaskInstance
from paradecode_lab.measure.tasks.tasks import BY_NAME
from paradecode_lab.training.diffusion.data import prompt_tokens
from paradecode_lab.training.diffusion.model import TinyModel
from paradecode_lab.training.diffusion.sampler import continue_text, fill
from paradecode_lab.training.diffusion.vocabulary import END

Decode = Callable[[Tensor, int], Tensor]
"""(prompts [B, P], length) -> [B, up to length]."""
TOGETHER = 256


def decoder_of(model: TinyModel, block: int = 0, order: str = "confidence") -> Decode:
    """Plain decoding with this model; ``block`` and ``order`` apply to diffusion models."""
    if model.config.attention == "causal":
        return lambda prompts, length: continue_text(model, prompts, length)
    return lambda prompts, length: fill(model, prompts, length, block, order)


def canvas_length(answer: Sequence[int]) -> int:
    """Length of the canvas for an answer: 32 or 64, as in ParallelBench, with room for END."""
    return 32 if len(answer) < 32 else 64


def answers(
    decode: Decode, tokenizer: Any, instances: Sequence[TaskInstance], device: torch.device
) -> list[str]:
    """The decoded text of each instance, up to the first END."""
    groups: dict[tuple[int, int], list[tuple[int, list[int]]]] = defaultdict(list)
    for index, instance in enumerate(instances):
        prompt = prompt_tokens(tokenizer, instance.prompt)
        length = canvas_length(tokenizer.encode(instance.answer).ids)
        groups[len(prompt), length].append((index, prompt))
    texts = [""] * len(instances)
    for (_, length), group in groups.items():
        for first in range(0, len(group), TOGETHER):
            part = group[first : first + TOGETHER]
            prompts = torch.tensor([prompt for _, prompt in part], device=device)
            for (index, _), row in zip(part, decode(prompts, length).tolist()):
                ids = row[: row.index(END)] if END in row else row
                texts[index] = tokenizer.decode(ids, skip_special_tokens=False)
    return texts


def exact_match(
    decode: Decode,
    tokenizer: Any,
    tasks: Sequence[Task],
    count: int,
    device: torch.device,
    seed: int = 0,
) -> dict[str, Interval]:
    """Share of right answers among ``count`` held-out instances of each task, with Wilson
    intervals."""
    instances = [instance for task in tasks for instance in task.held_out(count, seed)]
    right: dict[str, int] = defaultdict(int)
    for instance, text in zip(instances, answers(decode, tokenizer, instances, device)):
        right[instance.task] += BY_NAME[instance.task].check(instance, text)
    return {task.name: wilson(right[task.name], count) for task in tasks}
