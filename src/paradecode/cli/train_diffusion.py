"""`paradecode train diffusion` and `train autoregressive`: the tiny models that ship."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from paradecode.cli.console import err, out
from paradecode.cli.options import grouped
from paradecode.core.errors import InvalidInput

if TYPE_CHECKING:
    import torch

    from paradecode.measure.statistics import Interval

Output = Annotated[Path, typer.Argument(help="Folder; a run that was stopped there goes on.")]


@dataclass(frozen=True)
class Run:
    """How long is trained, where, and how it is watched."""

    steps: Annotated[int, typer.Option(help="Optimiser steps in all.", min=1, max=10**6)] = 6000
    seed: Annotated[int, typer.Option(help="Of weights and rows.", min=0, max=2**32 - 1)] = 0
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu"
    threads: Annotated[
        int | None, typer.Option(help="CPU threads; default: what is allowed.", min=1, max=256)
    ] = None
    every: Annotated[int, typer.Option(help="Steps between evaluations.", min=1)] = 500
    instances: Annotated[
        int,
        typer.Option(help="Held-out instances a task in the last evaluation.", min=1, max=1000),
    ] = 200


@grouped
def train_diffusion(output: Output, run: Run) -> None:
    """A small masked diffusion model for tasks with checkable answers. Ctrl-C saves and leaves."""
    _train("diffusion", output, run)


@grouped
def train_autoregressive(output: Output, run: Run) -> None:
    """Its autoregressive twin: the same data and size, causal attention, next-token loss."""
    _train("autoregressive", output, run)


def _train(objective: str, output: Path, run: Run) -> None:
    where = device_of(run.device)
    import torch

    from paradecode.training.diffusion.run import CHECKPOINT, VARIANTS, evaluate, train
    from paradecode.training.diffusion.training import Plan, Trainer

    workers = 1 if where.type == "cuda" else run.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(1)  # Workers take different rows instead.
    plan = Plan(objective=objective, steps=run.steps, seed=run.seed)
    checkpoint = output / CHECKPOINT
    trainer = (
        Trainer.load(checkpoint, plan, where, workers)
        if checkpoint.exists()
        else Trainer(plan, where, workers)
    )
    stop = stop_on_signals()
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
        TextColumn("loss {task.fields[loss]:.3f}  {task.fields[exact]}"),
    )  # fmt: skip
    with Progress(*columns, console=err) as progress:
        bar = progress.add_task(
            objective, total=run.steps, completed=trainer.step, loss=float("nan"), exact=""
        )

        def tell(step: int, loss: float, exact: dict[str, Interval] | None) -> None:
            progress.update(bar, completed=step, loss=loss)
            if exact is not None:
                mean = sum(share.value for share in exact.values()) / len(exact)
                progress.update(bar, exact=f"held out {mean:.0%} exact")

        done = train(trainer, output, should_stop=stop.is_set, tell=tell, every=run.every)
    if not done:
        err.print(f"stopped at step {trainer.step}; the same command goes on", highlight=False)
        raise typer.Exit(130)
    torch.set_num_threads(workers)
    variants = VARIANTS if objective == "diffusion" else VARIANTS[:1]
    with err.status(f"exact match on {run.instances} held-out instances a task"):
        out.print(_table(evaluate(trainer, output, variants, run.instances)))


def device_of(name: str) -> torch.device:
    """The torch device of this name; raises InvalidInput if it is not there."""
    try:
        import torch
    except ImportError:
        fix = "install the extra: pip install 'paradecode[train]'"
        raise InvalidInput("training", "PyTorch, which is missing,", fix) from None
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InvalidInput("device", name, "use cpu, cuda or cuda:N") from None
    if device.type == "cuda" and (device.index or 0) < torch.cuda.device_count():
        return device
    if device.type == "cpu":
        return device
    raise InvalidInput("device", name, "it is not on this machine; use cpu")


def stop_on_signals() -> threading.Event:
    """An event that Ctrl-C or SIGTERM sets; a second signal ends the process as usual."""
    stop = threading.Event()
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, frame: object) -> None:
        stop.set()
        for each, handler in usual.items():
            signal.signal(each, handler)

    for number in usual:
        signal.signal(number, ask)
    return stop


def _table(results: dict[str, dict[str, Interval]]) -> Table:
    table = Table("task", *results)
    for task in next(iter(results.values())):
        shares = (by_task[task] for by_task in results.values())
        table.add_row(task, *(f"{s.value:.1%} ({s.low:.1%} to {s.high:.1%})" for s in shares))
    return table
