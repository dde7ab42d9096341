"""Tiny diffusion models for tests, with settings that train in a moment."""

from dataclasses import replace

import torch

from paradecode_lab.training.diffusion.training import DiffusionPlan, TinyTraining

CPU = torch.device("cpu")
SMALL = DiffusionPlan(steps=12, rows=40, hidden_size=32, layers=2, heads=2, inner=48, warmup=2)


def trainer(workers: int = 1, **changes: object) -> TinyTraining:
    return TinyTraining(replace(SMALL, **changes), CPU, workers)  # type: ignore[arg-type]
