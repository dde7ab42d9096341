"""Measure the exact match of a tiny model on held-out instances of every task.

The measurement is quick during training, and full at the end.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.statistics import Interval, wilson
from paradecode_lab.measure.tasks.task import Task, TaskInstance
from paradecode_lab.measure.tasks.tasks import BY_NAME, tasks_named
from paradecode_lab.training.diffusion.data import prompt_tokens
from paradecode_lab.training.diffusion.model import TinyModel
from paradecode_lab.training.diffusion.training import TinyTraining
from paradecode_lab.training.diffusion.vocabulary import END, MASK

ORDERS = ("confidence", "left")


@torch.inference_mode()
def fill(
    model: TinyModel, prompts: Tensor, length: int, block: int = 0, order: str = "confidence"
) -> Tensor:
    """Decode with LLaDA's static schedule, one token a forward, at temperature 0.

    Args:
        model: a diffusion model.
        prompts: int64 [B, P].
        length: number of masks after the prompt.
        block: length of the blocks, which are filled one after another; 0 is one block.
        order: ``confidence`` takes the most probable token of the block, the leftmost among equal
            ones; ``left`` takes the leftmost mask.

    Returns:
        The filled canvases without their prompts, int64 [B, length].

    Raises:
        InvalidInput: for an unknown order.
    """
    if order not in ORDERS:
        raise InvalidInput("order", order, f"use one of {', '.join(ORDERS)}")
    count, start = prompts.shape
    canvas = torch.cat([prompts, prompts.new_full((count, length), MASK)], 1)
    masked = torch.ones(count, length, dtype=torch.bool, device=prompts.device)
    rows = torch.arange(count, device=prompts.device)
    for first in range(0, length, block or length):
        last = min(first + (block or length), length)
        for _ in range(last - first):
            at = start + first - model.config.shift
            logits = model.logits(model(canvas)[:, at : at + last - first])
            logits[..., MASK] = -torch.inf
            confidence, tokens = logits.softmax(-1).max(-1)
            score = confidence if order == "confidence" else torch.ones_like(confidence)
            score = score.where(masked[:, first:last], -1)
            place = (score == score.max(1, keepdim=True).values).int().argmax(1)
            canvas[rows, start + first + place] = tokens[rows, place]
            masked[rows, first + place] = False
    return canvas[:, start:]


@torch.inference_mode()
def continue_text(model: TinyModel, prompts: Tensor, length: int) -> Tensor:
    """Decode greedily with an autoregressive model: prompts int64 [B, P] -> [B, up to length].

    Decoding stops when every row has an END; tokens after a row's END have no meaning.
    """
    tokens, start = prompts, prompts.shape[1]
    for _ in range(length):
        best = model.logits(model(tokens)[:, -1]).argmax(-1, keepdim=True)
        tokens = torch.cat([tokens, best], 1)
        if (tokens[:, start:] == END).any(1).all():
            break
    return tokens[:, start:]


Decode = Callable[[Tensor, int], Tensor]
"""A decoding function: (prompts [B, P], length) -> tokens [B, up to length]."""
TOGETHER = 256


def decoder_of(model: TinyModel, block: int = 0, order: str = "confidence") -> Decode:
    """Return a function that decodes plainly with this model.

    ``block`` and ``order`` apply to diffusion models only.
    """
    if model.config.attention == "causal":
        return lambda prompts, length: continue_text(model, prompts, length)
    return lambda prompts, length: fill(model, prompts, length, block, order)


def canvas_length(answer: Sequence[int]) -> int:
    """Return the canvas length for an answer: 32 or 64, as in ParallelBench, with room for END."""
    return 32 if len(answer) < 32 else 64


def answers(
    decode: Decode, tokenizer: Any, instances: Sequence[TaskInstance], device: torch.device
) -> list[str]:
    """Decode all instances, and return their texts up to the first END."""
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
    """Return the share of right answers to ``count`` held-out instances of each task.

    The intervals are Wilson's.
    """
    instances = [instance for task in tasks for instance in task.held_out(count, seed)]
    right: dict[str, int] = defaultdict(int)
    for instance, text in zip(instances, answers(decode, tokenizer, instances, device)):
        right[instance.task] += BY_NAME[instance.task].check(instance, text)
    return {task.name: wilson(right[task.name], count) for task in tasks}


EXACT = "exact_match.json"


@dataclass(frozen=True)
class PlainDecoding:
    """A variant of plain decoding to evaluate; ``block`` 0 means the whole canvas."""

    name: str
    block: int = 0
    order: str = "confidence"


VARIANTS = (
    PlainDecoding("static(1)"), PlainDecoding("left to right", order="left"),
    PlainDecoding("block 8", block=8), PlainDecoding("block 32", block=32),
)  # fmt: skip


def look(trainer: TinyTraining, instances: int = 12) -> dict[str, float]:
    """Return the share of right answers to ``instances`` held-out instances of each task."""
    decode = decoder_of(trainer.average)
    exact = exact_match(
        decode, trainer.tokenizer, tasks_named(trainer.plan.tasks), instances, trainer.device
    )
    return {name: round(share.value, 3) for name, share in exact.items()}


def evaluate(
    trainer: TinyTraining, folder: Path, variants: Sequence[PlainDecoding], instances: int = 200
) -> dict[str, dict[str, Interval]]:
    """Measure the exact match of each variant on each task.

    The result is also written to the file EXACT in the folder.
    """
    results = {
        variant.name: exact_match(
            decoder_of(trainer.average, variant.block, variant.order),
            trainer.tokenizer, tasks_named(trainer.plan.tasks), instances, trainer.device,
        )
        for variant in variants
    }  # fmt: skip
    written = {
        "plan": asdict(trainer.plan),
        "step": trainer.step,
        "cpu_seconds": round(trainer.seconds),
        "instances": instances,
        "torch": torch.__version__,
        "exact_match": {
            name: {task: asdict(share) for task, share in shares.items()}
            for name, shares in results.items()
        },
    }
    (folder / EXACT).write_text(json.dumps(written, indent=2) + "\n", "utf-8")
    return results
