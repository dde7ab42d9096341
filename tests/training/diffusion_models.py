"""Settings that train in a blink."""

from __future__ import annotations

from dataclasses import replace

import torch

from paradecode.training.diffusion.training import Plan, Trainer

CPU = torch.device("cpu")
SMALL = Plan(steps=12, rows=40, hidden_size=32, layers=2, heads=2, inner=48, warmup=2)


def trainer(workers: int = 1, **changes: object) -> Trainer:
    return Trainer(replace(SMALL, **changes), CPU, workers)  # type: ignore[arg-type]
