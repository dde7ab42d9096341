"""Measures a tiny model's exact match: quickly while it is trained, and fully at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from paradecode_lab.measure.statistics import Interval
from paradecode_lab.measure.tasks.tasks import tasks_named
from paradecode_lab.training.diffusion.evaluation import decoder_of, exact_match
from paradecode_lab.training.diffusion.training import TinyTraining

EXACT = "exact_match.json"


@dataclass(frozen=True)
class PlainDecoding:
    """A kind of plain decoding to evaluate; ``block`` 0 is the whole canvas."""

    name: str
    block: int = 0
    order: str = "confidence"


VARIANTS = (
    PlainDecoding("static(1)"), PlainDecoding("left to right", order="left"),
    PlainDecoding("block 8", block=8), PlainDecoding("block 32", block=32),
)  # fmt: skip


def look(trainer: TinyTraining, instances: int = 12) -> dict[str, float]:
    """Share of right answers to ``instances`` held-out instances of each task."""
    decode = decoder_of(trainer.average)
    exact = exact_match(
        decode, trainer.tokenizer, tasks_named(trainer.plan.tasks), instances, trainer.device
    )
    return {name: round(share.value, 3) for name, share in exact.items()}


def evaluate(
    trainer: TinyTraining, folder: Path, variants: Sequence[PlainDecoding], instances: int = 200
) -> dict[str, dict[str, Interval]]:
    """Exact match of each variant on each task; also written to EXACT in the folder."""
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
