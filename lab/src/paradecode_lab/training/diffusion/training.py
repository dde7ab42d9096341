"""Train a tiny model. The training can be stopped and continued at any step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from paradecode.core.errors import InvalidInput
from paradecode.models.catalogue import find
from paradecode.models.config import ModelConfig
from paradecode_lab.measure.tasks.tasks import tasks_named
from paradecode_lab.training.diffusion.data import ROWS_TOGETHER, Pack, packs
from paradecode_lab.training.diffusion.model import TinyModel, load_weights, save_model, tiny_config
from paradecode_lab.training.diffusion.objectives import block_loss, diffusion_loss, next_token_loss
from paradecode_lab.training.diffusion.vocabulary import (
    build_tokenizer,
    save_tokenizer,
    spaced_words,
)
from paradecode_lab.training.running import Training, check_same, load_checkpoint, readable, restore

MODEL = "model"
OBJECTIVES = ("diffusion", "autoregressive")
HARD = {"addition": 2.0, "word-problem": 4.0, "sort": 1.5, "recall": 1.5, "shuffle": 1.5}
"""Tasks that are drawn more often than others, and how many times as often."""


@dataclass(frozen=True)
class DiffusionPlan:
    """All settings that the weights depend on.

    Attributes:
        objective: ``diffusion`` or ``autoregressive``.
        seed: seed of weights and rows.
        steps: number of optimiser steps.
        rows: number of texts in a step.
        hidden_size, layers, heads, inner: sizes of the model.
        matrix_rate: learning rate of Muon, for the matrices of the layers.
        other_rate: learning rate of AdamW, for embedding and norms.
        warmup: number of steps in which the rates rise.
        cooldown: share of the steps, at the end, in which the rates fall to 0.
        averaging: decay per step of the weights' moving average, which is evaluated and saved.
        tasks: the set of tasks, ``simple`` or ``graded``.
        blocks: share of a diffusion model's packs that are trained with attention in blocks.
        shift: whether a row's logits predict the next position, as in the autoregressive twin. A
            diffusion model can then begin with the twin's weights (Dream, arXiv:2508.15487).
        start: name or folder of a model of the same size whose weights the training begins with; ""
            means none.

    Raises:
        InvalidInput: a setting is out of range, or does not fit the objective.
    """

    objective: str = "diffusion"
    seed: int = 0
    steps: int = 6000
    rows: int = 192
    hidden_size: int = 192
    layers: int = 6
    heads: int = 6
    inner: int = 512
    matrix_rate: float = 0.006
    other_rate: float = 0.001
    warmup: int = 50
    cooldown: float = 0.8
    averaging: float = 0.998
    tasks: str = "simple"
    blocks: float = 0.0
    shift: bool = False
    start: str = ""

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InvalidInput("objective", self.objective, f"use one of {', '.join(OBJECTIVES)}")
        tasks_named(self.tasks)
        if not 0 <= self.blocks <= 1:
            raise InvalidInput("blocks", self.blocks, "give a share, 0 to 1")
        for name in ("blocks", "shift"):
            if getattr(self, name) and self.objective != "diffusion":
                raise InvalidInput(name, getattr(self, name), "only diffusion models have it")
        for name, high in (("steps", 10**6), ("rows", 10**5), ("hidden_size", 4096), ("layers", 64),
                           ("heads", 64), ("inner", 16384)):  # fmt: skip
            if not 1 <= getattr(self, name) <= high:
                raise InvalidInput(name, getattr(self, name), f"give 1 to {high}")
        if self.hidden_size % (2 * self.heads):
            raise InvalidInput("hidden_size", self.hidden_size, "make it a multiple of 2 * heads")

    def rate(self, step: int) -> float:
        """Return the factor of both learning rates in a step, from 0 to 1."""
        left = (self.steps - step) / max(1, self.cooldown * self.steps)
        return min(1.0, (step + 1) / (self.warmup + 1), left)


class TinyTraining(Training):
    """A tiny model that is being trained.

    Args:
        plan: settings of the training.
        device: a torch device.
        workers: the most threads; each works on other packs of a step's rows. On a CPU this is
            faster than threads inside each operation, because the threads wait for one another only
            once in a step. Equal plans give equal weights if the number of workers is equal.

    Attributes:
        seconds: CPU time of the training so far, over all runs.
        model, average: the weights being trained, and their average.
    """

    def __init__(self, plan: DiffusionPlan, device: torch.device, workers: int = 1) -> None:
        self.plan, self.device = plan, device
        self.steps, self.seconds = plan.steps, 0.0
        self.tokenizer = build_tokenizer()
        self.shares = {task.name: HARD.get(task.name, 1.0) for task in tasks_named(plan.tasks)}
        config = tiny_config(
            plan.objective, self.tokenizer.get_vocab_size(), plan.hidden_size, plan.layers,
            plan.heads, plan.inner, plan.shift,
        )  # fmt: skip
        self.model = self.made(config)
        self.model.set_alike(spaced_words(self.tokenizer), plan.seed + 1)
        if plan.start:
            entry = find(plan.start)
            load_weights(self.model, (entry and entry.path) or Path(plan.start))
        self.average = deepcopy(self.model)
        workers = min(workers, -(-plan.rows // ROWS_TOGETHER))  # More would get no pack.
        self._copies = [self.model, *(self._copy() for _ in range(workers - 1))]
        self._pool = ThreadPoolExecutor(workers)
        matrices = [p for p in self.model.layers.parameters() if p.ndim == 2]
        inside = {id(p) for p in matrices}
        others = [p for p in self.model.parameters() if id(p) not in inside]
        self.optimizers: list[tuple[torch.optim.Optimizer, float]] = [
            (torch.optim.Muon(matrices, plan.matrix_rate, 0.01), plan.matrix_rate),
            (
                torch.optim.AdamW(others, plan.other_rate, (0.9, 0.98), weight_decay=0.0),
                plan.other_rate,
            ),
        ]

    def made(self, config: ModelConfig) -> TinyModel:
        """Return a model with its first weights."""
        return TinyModel(config, self.plan.seed).to(self.device)

    def _copy(self) -> TinyModel:
        """Return a model that shares the weights and has its own gradients."""
        copy = self.made(self.model.config)
        for own, shared in zip(copy.parameters(), self.model.parameters()):
            own.data = shared.data
        return copy

    def advance(self) -> float:
        """Do one optimiser step, and return the mean loss of a row."""
        began, plan = time.process_time(), self.plan
        tails = plan.objective == "diffusion"
        work = list(packs(self.tokenizer, self.shares, plan.seed, self.step, plan.rows, tails))
        total = sum(self._pool.map(self._gradients, range(len(self._copies)), repeat(work)))
        for one, *others in zip(*(copy.parameters() for copy in self._copies)):
            for other in others:
                one.grad.add_(other.grad)
                other.grad = None
        factor = plan.rate(self.step)
        for optimizer, rate in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = factor * rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        self._average()
        self.step += 1
        self.seconds += time.process_time() - began
        return total / plan.rows

    def _gradients(self, worker: int, work: Sequence[Pack]) -> float:
        """Compute the gradients of every n-th pack (n workers); return the sum of row losses."""
        model, plan, total = self._copies[worker], self.plan, 0.0
        even = np.random.default_rng((plan.seed, self.step))
        levels = (even.random() + even.permutation(plan.rows) / plan.rows) % 1
        for index in range(worker, len(work), len(self._copies)):
            pack, first = work[index], index * ROWS_TOGETHER
            with torch.autocast(self.device.type, torch.bfloat16):
                random = np.random.default_rng((plan.seed, self.step, index))
                loss = self.loss(model, pack, levels[first : first + len(pack.tokens)], random)
            (loss / plan.rows).backward()
            total += loss.item()
        return total

    def loss(
        self, model: TinyModel, pack: Pack, levels: NDArray[np.float64], random: np.random.Generator
    ) -> Tensor:
        """Return the sum of the losses of a pack's rows; ``levels`` are those of their masks."""
        # Without blocks no random number is drawn here, so that older plans give the same weights.
        if self.plan.blocks > 0 and random.random() < self.plan.blocks:
            return block_loss(model, pack, random)
        if self.plan.objective == "diffusion":
            return diffusion_loss(model, pack, levels, random)
        return next_token_loss(model, pack)

    @torch.no_grad()
    def _average(self) -> None:
        decay = min(self.plan.averaging, (1 + self.step) / (10 + self.step))
        for mean, now in zip(self.average.parameters(), self.model.parameters()):
            mean.lerp_(now, 1 - decay)

    def state(self) -> dict[str, Any]:
        return {
            "plan": asdict(self.plan),
            "step": self.step,
            "seconds": self.seconds,
            "model": self.model.state_dict(),
            "average": self.average.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer, _ in self.optimizers],
        }

    @classmethod
    def load(
        cls, path: Path, plan: DiffusionPlan, device: torch.device, workers: int = 1
    ) -> TinyTraining:
        """Continue from a checkpoint.

        Args:
            plan: the plan of the checkpoint; ``steps`` may differ until the learning rate begins to
                fall.

        Raises:
            InvalidModel: the file is damaged or not a checkpoint.
            InvalidInput: the checkpoint belongs to another plan, or to a model of another size.
        """
        state = load_checkpoint(path, device)
        with readable(path):
            before, step = DiffusionPlan(**state["plan"]), int(state["step"])
        falling = step > plan.warmup and min(before.rate(step), plan.rate(step)) < 1
        now = {n: v for n, v in asdict(plan).items() if n != "steps" or falling}
        check_same(path, now, asdict(before), "")
        trainer = cls(plan, device, workers)
        with readable(path):
            models = trainer.model.state_dict(), trainer.average.state_dict()
            pairs = list(zip(models, (state["model"], state["average"])))
            optimizers = [one for one, _ in trainer.optimizers]
            averages = list(zip(optimizers, state["optimizers"], strict=True))
            trainer.step, trainer.seconds = step, float(state["seconds"])
        restore(path, pairs, averages)
        return trainer

    def save(self, path: Path) -> None:
        """Write the checkpoint, and beside it the present model, so that it can be tried."""
        super().save(path)
        self.export(path.parent)

    def log_line(self) -> dict[str, Any]:
        return {"cpu_seconds": round(self.seconds, 1)}

    def export(self, folder: Path) -> None:
        """Write the averaged weights and the tokenizer to MODEL, a folder that ``LLM`` opens."""
        (folder / MODEL).mkdir(parents=True, exist_ok=True)
        save_model(self.average, folder / MODEL)
        save_tokenizer(self.tokenizer, folder / MODEL)
