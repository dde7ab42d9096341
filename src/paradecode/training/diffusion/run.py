"""One training run in a folder: checkpoints, a log, and the finished model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from paradecode.measure.statistics import Interval
from paradecode.measure.tasks.tasks import TASKS
from paradecode.training.diffusion.evaluation import decoder_of, exact_match
from paradecode.training.diffusion.training import TinyTraining
from paradecode.training.running import LOSSES, log

MODEL, EXACT = "model", "exact_match.json"


@dataclass(frozen=True)
class PlainDecoding:
    """A way of plain decoding that is evaluated; ``block`` 0 is the whole canvas."""

    name: str
    block: int = 0
    order: str = "confidence"


VARIANTS = (
    PlainDecoding("static(1)"), PlainDecoding("left to right", order="left"),
    PlainDecoding("block 8", block=8), PlainDecoding("block 32", block=32),
)  # fmt: skip


def train(
    trainer: TinyTraining,
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
        folder: gets CHECKPOINT, LOG and, in the end, MODEL.
        tell: told (step, mean loss of the last steps, exact match or None).
        every: steps between evaluations, of ``instances`` held-out instances a task.

    Returns:
        Whether the plan is done.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def each(loss: float) -> bool:
        exact, due = None, trainer.step % every == 0
        if due:
            decode = decoder_of(trainer.average)
            exact = exact_match(decode, trainer.tokenizer, TASKS, instances, trainer.device)
        if due or trainer.step % LOSSES == 0:
            seconds = round(trainer.seconds, 1)
            line = {"step": trainer.step, "cpu_seconds": seconds, "loss": round(loss, 4)}
            shares = {name: round(share.value, 3) for name, share in (exact or {}).items()}
            log(folder, line if exact is None else {**line, "exact": shares})
        tell(trainer.step, loss, exact)
        return due

    if not trainer.run(folder, should_stop, each, checkpoint_seconds):
        return False
    trainer.export(folder / MODEL)
    return True


def evaluate(
    trainer: TinyTraining, folder: Path, variants: Sequence[PlainDecoding], instances: int = 200
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
