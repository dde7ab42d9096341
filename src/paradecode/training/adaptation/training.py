"""The training loop: stops and goes on at any step, with the same adapter in the end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from paradecode.core.errors import InvalidInput, InvalidModel
from paradecode.models.adapter import Facts, save_adapter
from paradecode.models.checkpoint import Checkpoint
from paradecode.training.adaptation.model import Adapted, new_adapter, rounded
from paradecode.training.adaptation.objective import batch_of, complementary, loss_sum
from paradecode.training.adaptation.texts import Text, digest

CHECKPOINT, LOG, ADAPTER = "checkpoint.pt", "log.jsonl", "adapter.safetensors"
LOG_EVERY = 20
COOLDOWN = 0.2
"""Part of the steps, at the end, in which the rate falls to 0."""


@dataclass(frozen=True)
class Plan:
    """Everything that the adapter depends on, beside model and texts.

    Attributes:
        rank: of LoRA.
        block: positions of a block, a power of 2. The first quarter of the steps has blocks of a
            quarter of it, the second of half of it.
        shift: logits of row i stay about position i + 1, as in the causal model.
        steps: of the optimiser.
        batch: texts a step, each masked in two complementary ways.
        together: texts a forward.
        rate: of AdamW, after 3 % of the steps.
        distil: weight of the divergence from the causal model.
        seed: of the adapter and the masks.
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
        """Blocks grow (SDAR, arXiv 2510.06303; LLaDA2.0, 2512.15745)."""
        return max(1, self.block // (4, 2, 1, 1)[4 * step // self.steps])

    def rate_at(self, step: int) -> float:
        """The learning rate of a step."""
        rise = (step + 1) / (0.03 * self.steps)
        fall = (self.steps - step) / (COOLDOWN * self.steps)
        return self.rate * min(1.0, rise, fall)


class Trainer:
    """An adapter on its way.

    Args:
        plan: what to train.
        checkpoint: the causal model.
        facts: of the adapter.
        texts: to learn from.
        device: a torch device; bfloat16 products on CUDA, float32 on the CPU.

    Attributes:
        step: optimiser steps done.
        model: the causal model with the adapter.
    """

    def __init__(
        self, plan: Plan, checkpoint: Checkpoint, facts: Facts, texts: Sequence[Text],
        device: torch.device,
    ) -> None:  # fmt: skip
        self.plan, self.facts, self.texts, self.step = plan, facts, texts, 0
        self._digest = digest(texts)
        config, weights = checkpoint.config, checkpoint.weights
        adapter = new_adapter(config, weights, facts, plan.seed, device)
        self.model = Adapted(config, weights, facts, adapter, torch.float32, device)
        self._trained = [tensor.requires_grad_() for tensor in self.model.adapter.values()]
        self._optimizer = torch.optim.AdamW(self._trained, plan.rate, (0.9, 0.95), weight_decay=0.0)

    def advance(self) -> float:
        """One optimiser step; returns the mean loss of an answer position."""
        plan, block = self.plan, self.plan.block_at(self.step)
        random = np.random.default_rng((plan.seed, self.step))
        chosen = random.choice(len(self.texts), plan.batch, len(self.texts) < plan.batch)
        parts = [
            batch_of([self.texts[index] for index in chosen[first : first + plan.together]])
            for first in range(0, plan.batch, plan.together)
        ]
        sizes = [part.answer.size // block for part in parts]
        # Spread evenly over the step's blocks: less noise than independent draws.
        levels = (random.random() + random.permutation(sum(sizes)) / sum(sizes)) % 1
        count, total = sum(int(part.answer.sum()) for part in parts), 0.0
        for part, own in zip(parts, np.split(levels, np.cumsum(sizes)[:-1]), strict=True):
            masked = complementary(part, block, own.reshape(len(part.tokens), -1), random)
            with self._products():
                loss = loss_sum(self.model, part, masked, block, plan.distil) / count
            torch.autograd.backward(loss)
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(self._trained, 1.0)
        for group in self._optimizer.param_groups:
            group["lr"] = plan.rate_at(self.step)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return total

    def _products(self) -> torch.autocast | nullcontext[None]:
        cuda = self.model.device.type == "cuda"
        return torch.autocast("cuda", torch.bfloat16) if cuda else nullcontext()

    def save(self, path: Path) -> None:
        """Write a checkpoint; a crash leaves the old one or the new one, never half of one."""
        state = {
            "plan": asdict(self.plan), "facts": asdict(self.facts), "texts": self._digest,
            "step": self.step, "adapter": self.model.adapter,
            "optimizer": self._optimizer.state_dict(),
        }  # fmt: skip
        part = path.with_suffix(".part")
        torch.save(state, part)
        os.replace(part, path)

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint of the same plan, model and texts.

        Raises:
            InvalidModel: the file is damaged.
            InvalidInput: it belongs to another run.
        """
        try:
            state = torch.load(path, map_location=self.model.device, weights_only=True)
            begun = {**state["plan"], **state["facts"], "texts": state["texts"]}
            step, adapter, optimizer = int(state["step"]), state["adapter"], state["optimizer"]
        except Exception as error:  # Unpicklers raise anything.
            raise _damaged(path, error) from None
        now = {**asdict(self.plan), **asdict(self.facts), "texts": self._digest}
        for name, value in now.items():
            if begun.get(name) != value:
                fix = f"{path} was begun with {begun.get(name)}: name a new folder"
                raise InvalidInput(name, value, fix)
        try:
            with torch.no_grad():
                for name, tensor in self.model.adapter.items():
                    tensor.copy_(adapter[name])
            self._optimizer.load_state_dict(optimizer)
        except Exception as error:
            raise _damaged(path, error) from None
        self.step = step


def _damaged(path: Path, error: Exception) -> InvalidModel:
    fix = f"it cannot be read ({error}); remove it to begin anew"
    return InvalidModel("checkpoint", str(path), fix)


def train(
    trainer: Trainer,
    folder: Path,
    *,
    should_stop: Callable[[], bool],
    tell: Callable[[int, float], None],
    checkpoint_seconds: float = 120.0,
) -> bool:
    """Train to the end of the plan or until asked to stop; a checkpoint is left either way.

    Args:
        folder: gets CHECKPOINT, LOG and, in the end, ADAPTER.
        should_stop: asked before every step.
        tell: told (step, mean loss of the last LOG_EVERY steps).

    Returns:
        Whether the plan is done.
    """
    losses: list[float] = []
    saved = began = time.monotonic()
    while trainer.step < trainer.plan.steps and not should_stop():
        block = trainer.plan.block_at(trainer.step)
        losses = [*losses[1 - LOG_EVERY :], trainer.advance()]
        loss = sum(losses) / len(losses)
        if time.monotonic() - saved > checkpoint_seconds:
            trainer.save(folder / CHECKPOINT)
            saved = time.monotonic()
        if trainer.step % LOG_EVERY == 0:
            line = {"step": trainer.step, "block": block, "loss": round(loss, 4),
                    "seconds": round(time.monotonic() - began, 1)}  # fmt: skip
            with (folder / LOG).open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        tell(trainer.step, loss)
    trainer.save(folder / CHECKPOINT)
    if trainer.step < trainer.plan.steps:
        return False
    save_adapter(folder / ADAPTER, rounded(trainer.facts, trainer.model.adapter))
    return True
