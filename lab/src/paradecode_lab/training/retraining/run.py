"""A model that is trained to decode in another way; it can be stopped and continued."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from paradecode_lab.training.adaptation.texts import BlockText, digest
from paradecode_lab.training.retraining.texts import AnswerRows, rows_of
from paradecode_lab.training.running import Training, go_on

RISE = 20
"""Number of steps in which the learning rate rises; after them it falls to 0."""


@dataclass(frozen=True)
class RetrainingPlan:
    """Settings of the training.

    Attributes:
        steps: number of steps of AdamW, with ``batch`` texts each.
        rate: the highest learning rate.
        seed: seed of each step's texts, and of the objective's draws.
    """

    steps: int = 600
    batch: int = 32
    rate: float = 5e-4
    seed: int = 0


class Objective(Protocol):
    """The trained tensors and their loss."""

    device: torch.device

    @property
    def facts(self) -> Mapping[str, object]:
        """Settings that the result depends on; a checkpoint with other settings is refused."""
        ...

    @property
    def trained(self) -> Mapping[str, Tensor]:
        """Name -> tensor that the optimiser changes."""
        ...

    def loss(self, rows: AnswerRows, random: np.random.Generator, done: float) -> Tensor:
        """The loss of a step; ``done`` is the share of all steps that are done."""
        ...

    def export(self, folder: Path) -> None:
        """Write the result."""
        ...


class Retraining(Training):
    """The training of an objective. Equal plans, objectives and texts give equal weights on one
    machine."""

    def __init__(
        self, plan: RetrainingPlan, objective: Objective, texts: Sequence[BlockText]
    ) -> None:
        self.plan, self.objective, self.texts = plan, objective, texts
        self.steps, self._began, self._digest = plan.steps, time.monotonic(), digest(texts)
        self._tensors = [tensor.requires_grad_() for tensor in objective.trained.values()]
        self._optimizer = torch.optim.AdamW(self._tensors, plan.rate, weight_decay=0.0)

    def advance(self) -> float:
        plan = self.plan
        random = np.random.default_rng((plan.seed, self.step))
        chosen = random.choice(len(self.texts), plan.batch, len(self.texts) < plan.batch)
        rows = rows_of([self.texts[index] for index in chosen], self.objective.device)
        loss = self.objective.loss(rows, random, self.step / plan.steps)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(self._tensors, 1.0)
        rate = plan.rate * min((self.step + 1) / RISE, 1.0 - self.step / plan.steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return loss.item()

    def _facts(self) -> dict[str, Any]:
        return {**asdict(self.plan), **self.objective.facts, "texts": self._digest}

    def state(self) -> dict[str, Any]:
        return {
            "facts": self._facts(), "step": self.step, "weights": dict(self.objective.trained),
            "optimizer": self._optimizer.state_dict(),
        }  # fmt: skip

    def log_line(self) -> dict[str, Any]:
        return {"seconds": round(time.monotonic() - self._began, 1)}

    def export(self, folder: Path) -> None:
        self.objective.export(folder)

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint of the same plan, model and texts.

        Raises:
            InvalidModel: the file is damaged.
            InvalidInput: it belongs to another run.
        """
        go_on(self, path, self._facts(), self.objective.trained, self._optimizer)
