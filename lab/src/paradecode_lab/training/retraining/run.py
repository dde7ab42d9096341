"""A model that is trained to decode in another way; it can be stopped and continued."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from paradecode_lab.training.adaptation.texts import BlockText, digest
from paradecode_lab.training.retraining.objective import Objective
from paradecode_lab.training.retraining.texts import rows_of
from paradecode_lab.training.running import TuneSettings, WeightTraining


@dataclass(frozen=True, kw_only=True)
class RetrainingPlan(TuneSettings):
    """Settings of the training; ``seed`` is that of each step's texts and of the objective's
    draws."""

    steps: int = 600
    batch: int = 32
    rate: float = 5e-4


class Retraining(WeightTraining):
    """The training of an objective."""

    def __init__(
        self, plan: RetrainingPlan, objective: Objective, texts: Sequence[BlockText]
    ) -> None:
        self.plan, self.objective, self.texts = plan, objective, texts
        facts = {**asdict(plan), **objective.facts, "texts": digest(texts)}
        super().__init__(objective.trained, plan, facts)

    def losses(self, random: np.random.Generator) -> Iterator[Tensor]:
        plan = self.plan
        chosen = random.choice(len(self.texts), plan.batch, len(self.texts) < plan.batch)
        rows = rows_of([self.texts[index] for index in chosen], self.objective.device)
        yield self.objective.loss(rows, random, self.step / plan.steps)

    def export(self, folder: Path) -> None:
        self.objective.export(folder)
