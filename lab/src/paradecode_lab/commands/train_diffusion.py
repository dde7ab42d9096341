"""`paradecode train diffusion` and `train autoregressive`: train the tiny models that ship."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from paradecode.cli.console import err, out
from paradecode.cli.options import grouped, option
from paradecode.cli.outputs import make_folder
from paradecode.core.errors import InvalidInput
from paradecode_lab.commands.train_steps import RunFolder, device_of, until_stopped

if TYPE_CHECKING:
    from paradecode_lab.measure.statistics import Interval


@dataclass(frozen=True)
class RunOptions:
    """Options of a run: how long it trains, on which device, and how it is evaluated."""

    steps: int = option(6000, "Optimiser steps, those of earlier runs included.", min=1, max=10**6)
    rows: int = option(192, "Number of texts in a step.", min=1, max=10**5)
    tasks: str = option("simple", "Set of tasks that the model learns: simple or graded.")
    start: str = option("", "Name or folder of a model whose weights it begins with.")
    blocks: float = option(0.0, "Share of texts with attention in blocks.", min=0, max=1)
    shift: bool = option(False, "Logits predict the next position, as a causal model's.")
    states: str = option("", "Layers with heads of Mamba-2 in place of attention, as '1 4 5'.")
    averaging: float = option(0.998, "Decay of the running average of the weights.", min=0, max=1)
    seed: int = option(0, "Seed of the weights and the texts.", min=0, max=2**32 - 1)
    device: str = option("cpu", "cpu, cuda or cuda:N.")
    threads: int | None = option(None, "CPU threads; by default all allowed ones.", min=1, max=256)
    every: int = option(500, "Number of steps between two evaluations.", min=1)
    instances: int = option(
        200, "Held-out instances a task in the last evaluation.", min=1, max=1000
    )


@grouped
def train_diffusion(output: RunFolder, run: RunOptions) -> None:
    """Train a small masked diffusion model on tasks with checkable answers. Ctrl-C saves."""
    _train("diffusion", output, run)


@grouped
def train_autoregressive(output: RunFolder, run: RunOptions) -> None:
    """Train an autoregressive model of the same size on the same tasks. Ctrl-C saves."""
    _train("autoregressive", output, run)


def _train(objective: str, output: Path, run: RunOptions) -> None:
    where = device_of(run.device)
    make_folder("OUTPUT", output)
    import torch

    from paradecode_lab.training.diffusion.evaluation import VARIANTS, evaluate, look
    from paradecode_lab.training.diffusion.training import DiffusionPlan, TinyTraining
    from paradecode_lab.training.running import CHECKPOINT

    workers = 1 if where.type == "cuda" else run.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(1)  # Workers are threads that take different rows.
    plan = DiffusionPlan(
        objective, run.seed, run.steps, run.rows, tasks=run.tasks, blocks=run.blocks,
        shift=run.shift, states=_indices(run.states), start=run.start,
        averaging=run.averaging,
    )  # fmt: skip
    checkpoint = output / CHECKPOINT
    trainer = (
        TinyTraining.load(checkpoint, plan, where, workers)
        if checkpoint.exists()
        else TinyTraining(plan, where, workers)
    )

    until_stopped(objective, trainer, output, partial(look, trainer), run.every)
    torch.set_num_threads(workers)
    variants = VARIANTS if objective == "diffusion" else VARIANTS[:1]
    with err.status(f"exact match on {run.instances} held-out instances a task"):
        out.print(_table(evaluate(trainer, output, variants, run.instances)))


def _indices(text: str) -> tuple[int, ...]:
    """Return the layers that ``--states`` names."""
    try:
        return tuple(sorted({int(each) for each in text.split()}))
    except ValueError:
        raise InvalidInput("--states", text, "give indices of layers, as '1 4 5'") from None


def _table(results: dict[str, dict[str, Interval]]) -> Table:
    table = Table("task", *results)
    for task in next(iter(results.values())):
        shares = (by_task[task] for by_task in results.values())
        table.add_row(task, *(f"{s.value:.1%} ({s.low:.1%} to {s.high:.1%})" for s in shares))
    return table
