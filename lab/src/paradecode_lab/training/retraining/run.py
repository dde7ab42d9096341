"""Retrain models for another decoding method: what an objective trains, and its training."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from paradecode.backends.torch.model import Transformer
from paradecode.models.adapter import check_base, unused_token
from paradecode.models.checkpoint import Checkpoint
from paradecode_lab.measure import machine
from paradecode_lab.training.adaptation.texts import BlockText, digest
from paradecode_lab.training.retraining.texts import MODEL, AnswerRows, rows_of
from paradecode_lab.training.running import TuneSettings, WeightTraining
from paradecode_lab.training.unmasking.folder import change_config, save_folder, source_of


class Objective:
    """Base class of objectives: what is trained, its loss, and how the result is written.

    Args:
        checkpoint: a model from a folder or a GGUF file; the result is written in its precision.
        device: a torch device.
        name: name of the objective.
        settings: settings that the result depends on.

    Attributes:
        trained: name -> tensor that the optimiser changes.
        facts: settings, objective and a digest of the weights; a checkpoint with other facts is
            refused.

    Raises:
        InvalidInput, InvalidModel: if the model cannot be written.
    """

    trained: Mapping[str, Tensor]

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device, name: str, **settings: object
    ) -> None:
        self.checkpoint, self.device = checkpoint, device
        self.facts = {
            "objective": name,
            "weights": machine.digest(source_of(checkpoint)),
            **settings,
        }

    def loss(self, rows: AnswerRows, random: np.random.Generator, done: float) -> Tensor:
        """Return the loss of a step; ``done`` is the share of all steps that are done."""
        raise NotImplementedError

    def export(self, folder: Path) -> None:
        """Write MODEL, a copy of the model's folder with the trained weights."""
        save_folder(self.checkpoint, self.trained, folder / MODEL)


class MaskedObjective(Objective):
    """Base class of objectives that train all weights of a causal model, which gets a mask token.

    Args:
        checkpoint: its configuration may have fewer layers than the file; deeper ones are left out.

    Attributes:
        mask: id of the mask token.

    Raises:
        InvalidInput, InvalidModel: if the model cannot be written, is not dense and causal, or has
            no unused token.
    """

    def __init__(
        self, checkpoint: Checkpoint, device: torch.device, name: str, **settings: object
    ) -> None:
        check_base(checkpoint.config)
        self.mask = unused_token(checkpoint)
        super().__init__(checkpoint, device, name, mask=self.mask, **settings)
        self.model = Transformer(checkpoint.config, checkpoint.weights, torch.float32, device)
        self.trained = self.model.w

    def export(self, folder: Path) -> None:
        """Write MODEL, a folder whose configuration names the mask token."""
        super().export(folder)
        layers = self.checkpoint.config.layers
        change_config(folder / MODEL, layers, attention="causal", mask_token_id=self.mask)


@dataclass(frozen=True, kw_only=True)
class RetrainingPlan(TuneSettings):
    """Settings of the training; ``seed`` is the seed of each step's texts and of random draws."""

    steps: int = 600
    batch: int = 32
    rate: float = 5e-4


class Retraining(WeightTraining):
    """The training of an objective on texts."""

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
