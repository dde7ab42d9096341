"""One training run in a folder: checkpoints, a log, and the finished model."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from paradecode.measure.statistics import Interval
from paradecode.measure.tasks.tasks import TASKS
from paradecode.training.diffusion.evaluation import decoder_of, exact_match
from paradecode.training.diffusion.training import Trainer

CHECKPOINT, LOG, MODEL, EXACT = "checkpoint.pt", "log.jsonl", "model", "exact_match.json"
LOSSES = 20
"""Steps whose losses are averaged for the log."""


@dataclass(frozen=True)
class Variant:
    """A way of plain decoding that is evaluated; ``block`` 0 is the whole canvas."""

    name: str
    block: int = 0
    order: str = "confidence"


VARIANTS = (
    Variant("static(1)"), Variant("left to right", order="left"),
    Variant("block 8", block=8), Variant("block 32", block=32),
)  # fmt: skip


def train(
    trainer: Trainer,
    folder: Path,
    *,
    should_stop: Callable[[], bool],
    tell: Callable[[int, float, dict[str, Interval] | None], None],
    every: int = 500,
    instances: int = 12,
    checkpoint_seconds: float = 120.0,
) -> bool:
    """Train to the end of the plan or until asked to stop; a checkpoint is left either way.

    Args:
        trainer: new or loaded.
        folder: gets CHECKPOINT, LOG and, in the end, MODEL.
        should_stop: asked after every step.
        tell: told (step, mean loss of the last steps, exact match or None).
        every: steps between evaluations, of ``instances`` held-out instances a task.
        checkpoint_seconds: between checkpoints.

    Returns:
        Whether the plan is done.
    """
    folder.mkdir(parents=True, exist_ok=True)
    losses: list[float] = []
    saved = time.monotonic()
    while trainer.step < trainer.plan.steps and not should_stop():
        losses = [*losses[1 - LOSSES :], trainer.advance()]
        loss, exact = sum(losses) / len(losses), None
        if trainer.step % every == 0 or time.monotonic() - saved > checkpoint_seconds:
            trainer.save(folder / CHECKPOINT)
            saved = time.monotonic()
        if trainer.step % every == 0:
            decode = decoder_of(trainer.average)
            exact = exact_match(decode, trainer.tokenizer, TASKS, instances, trainer.device)
        if exact is not None or trainer.step % LOSSES == 0:
            _log(folder / LOG, trainer, loss, exact)
        tell(trainer.step, loss, exact)
    trainer.save(folder / CHECKPOINT)
    if trainer.step < trainer.plan.steps:
        return False
    trainer.export(folder / MODEL)
    return True


def _log(path: Path, trainer: Trainer, loss: float, exact: dict[str, Interval] | None) -> None:
    line: dict[str, Any] = {
        "step": trainer.step,
        "cpu_seconds": round(trainer.seconds, 1),
        "loss": round(loss, 4),
    }
    if exact is not None:
        line["exact"] = {name: round(share.value, 3) for name, share in exact.items()}
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def evaluate(
    trainer: Trainer, folder: Path, variants: Sequence[Variant], instances: int = 200
) -> dict[str, dict[str, Interval]]:
    """Exact match of each variant on each task; also written to EXACT in the folder."""
    results = {
        variant.name: exact_match(
            decoder_of(trainer.average, variant.block, variant.order),
            trainer.tokenizer, TASKS, instances, trainer.device,
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
