"""Train an adapter. The training can be stopped and continued at any step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paradecode.core.errors import InvalidInput
from paradecode.models.adapter import Facts, save_adapter
from paradecode.models.checkpoint import Checkpoint
from paradecode_lab.measure import machine
from paradecode_lab.training.adaptation.model import Adapted, new_adapter, rounded
from paradecode_lab.training.adaptation.objective import batch_of, complementary, loss_sum
from paradecode_lab.training.adaptation.texts import BlockText, digest
from paradecode_lab.training.running import TuneSettings, WeightTraining

ADAPTER = "adapter.safetensors"
COOLDOWN = 0.2
"""Share of the steps, at the end, in which the learning rate falls to 0."""


@dataclass(frozen=True, kw_only=True)
class AdaptationPlan(TuneSettings):
    """All settings that the adapter depends on, beside model and texts.

    Attributes:
        rank: rank of the LoRA.
        block: number of positions in a block, a power of 2. In the first quarter of the steps,
            blocks have a quarter of these positions; in the second quarter, half of them.
        shift: whether the logits of row i predict position i + 1, as in the causal model.
        steps: number of optimiser steps.
        batch: number of texts in a step; each is masked in two complementary ways.
        together: number of texts in a forward.
        rate: highest learning rate of AdamW; the rate rises during the first 3 % of the steps.
        distil: weight of the divergence from the causal model.
        seed: seed of the adapter and the masks.
    """

    rank: int = 32
    block: int = 16
    shift: bool = True
    steps: int = 6000
    batch: int = 64
    together: int = 8
    rate: float = 2e-4
    distil: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.block & (self.block - 1):
            raise InvalidInput("--block", self.block, "give a power of 2")

    def block_at(self, step: int) -> int:
        """Return the number of positions in a block at a step.

        Blocks grow during training (SDAR, arXiv 2510.06303; LLaDA2.0, 2512.15745).
        """
        return max(1, self.block // (4, 2, 1, 1)[4 * step // self.steps])

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step."""
        rise = (step + 1) / (0.03 * self.steps)
        fall = (self.steps - step) / (COOLDOWN * self.steps)
        return self.rate * min(1.0, rise, fall)


class AdapterTraining(WeightTraining):
    """An adapter that is being trained.

    Args:
        plan: settings of the training.
        checkpoint: the causal model.
        facts: facts of the adapter.
        texts: the training texts.
        device: a torch device; matrix products are in bfloat16 on CUDA, and in float32 on the CPU.

    Attributes:
        model: the causal model with the adapter.
    """

    def __init__(
        self,
        plan: AdaptationPlan,
        checkpoint: Checkpoint,
        facts: Facts,
        texts: Sequence[BlockText],
        device: torch.device,
    ) -> None:
        self.plan, self.facts, self.texts = plan, facts, texts
        config, weights = checkpoint.config, checkpoint.weights
        adapter = new_adapter(config, weights, facts, plan.seed, device)
        self.model = Adapted(config, weights, facts, adapter, torch.float32, device)
        known = {
            **asdict(plan), **asdict(facts), "texts": digest(texts),
            "weights": machine.digest(Path(checkpoint.source)),
        }  # fmt: skip
        super().__init__(self.model.adapter, plan, known, (0.9, 0.95))

    def losses(self, random: np.random.Generator) -> Iterator[torch.Tensor]:
        """Yield parts of a step's loss, which add up to the mean over answer positions."""
        plan, block = self.plan, self.plan.block_at(self.step)
        chosen = random.choice(len(self.texts), plan.batch, len(self.texts) < plan.batch)
        parts = [
            batch_of([self.texts[index] for index in chosen[first : first + plan.together]])
            for first in range(0, plan.batch, plan.together)
        ]
        sizes = [part.answer.size // block for part in parts]
        # The levels are spread evenly over the blocks of the step, with less noise than independent
        # draws.
        levels = (random.random() + random.permutation(sum(sizes)) / sum(sizes)) % 1
        count = sum(int(part.answer.sum()) for part in parts)
        for part, own in zip(parts, np.split(levels, np.cumsum(sizes)[:-1]), strict=True):
            masked = complementary(part, block, own.reshape(len(part.tokens), -1), random)
            with self._products():
                loss = loss_sum(self.model, part, masked, block, plan.distil) / count
            yield loss

    def _products(self) -> torch.autocast | nullcontext[None]:
        cuda = self.model.device.type == "cuda"
        return torch.autocast("cuda", torch.bfloat16) if cuda else nullcontext()

    def log_line(self) -> dict[str, Any]:
        return {"block": self.plan.block_at(self.step - 1)}

    def export(self, folder: Path) -> None:
        """Write the adapter into the file ADAPTER."""
        save_adapter(folder / ADAPTER, rounded(self.facts, self.model.adapter))
