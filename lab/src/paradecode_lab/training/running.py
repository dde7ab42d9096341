"""Run a training that can be stopped and continued: its loop, log and checkpoints."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from paradecode.core.errors import InvalidInput, InvalidModel

CHECKPOINT, LOG = "checkpoint.pt", "log.jsonl"
Tell = Callable[[int, float, "Mapping[str, float] | None"], None]
"""A function that reports a step of training.

It is called with the number of steps done, the mean loss of the last LOSSES steps, and the
evaluation or None.
"""
LOSSES = 20
"""Number of steps whose losses are averaged; the log gets a line after so many steps."""

RISE = 20
"""Number of steps in which the learning rate rises; after them it falls to 0."""


class Training:
    """Base class of a model that is being trained.

    Equal plans give equal weights, even if the training was stopped and continued.

    Attributes:
        step: number of optimiser steps done.
        steps: number of optimiser steps in the plan.
    """

    step: int = 0
    steps: int

    def advance(self) -> float:
        """Do one optimiser step, and return the mean loss."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """Return the content of a checkpoint."""
        raise NotImplementedError

    def log_line(self) -> dict[str, Any]:
        """Return further fields for a line of the log, beside step, loss and seconds."""
        return {}

    def export(self, folder: Path) -> None:
        """Write the result into the folder of the run; the default leaves this to the caller."""

    def save(self, path: Path) -> None:
        """Write a checkpoint; after a crash the file is the old checkpoint or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        torch.save(self.state(), part)
        os.replace(part, path)

    def run(
        self,
        folder: Path,
        should_stop: Callable[[], bool],
        tell: Tell,
        evaluate: Callable[[], Mapping[str, float]] | None = None,
        every: int = 500,
        checkpoint_seconds: float = 120.0,
    ) -> bool:
        """Train until all steps are done or ``should_stop`` returns true; then save a checkpoint.

        Args:
            folder: gets CHECKPOINT, LOG and, when all steps are done, the result.
            should_stop: called before every step.
            tell: called after every step.
            evaluate: called after every ``every`` steps; a checkpoint follows.
            every: number of steps between two evaluations.
            checkpoint_seconds: seconds after which another checkpoint is saved.

        Returns:
            Whether all steps are done.
        """
        folder.mkdir(parents=True, exist_ok=True)
        losses: list[float] = []
        began = saved = time.monotonic()
        while self.step < self.steps and not should_stop():
            losses = [*losses[1 - LOSSES :], self.advance()]
            loss = sum(losses) / len(losses)
            exact = evaluate() if evaluate is not None and self.step % every == 0 else None
            if exact is not None or self.step % LOSSES == 0:
                seconds = round(time.monotonic() - began, 1)
                line = {"step": self.step, "loss": round(loss, 4), "seconds": seconds}
                line |= self.log_line()
                with (folder / LOG).open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line if exact is None else {**line, "exact": exact}))
                    file.write("\n")
            tell(self.step, loss, exact)
            if exact is not None or time.monotonic() - saved > checkpoint_seconds:
                self.save(folder / CHECKPOINT)
                saved = time.monotonic()
        self.save(folder / CHECKPOINT)
        done = self.step >= self.steps
        if done:
            self.export(folder)
        return done


@dataclass(frozen=True, kw_only=True)
class TuneSettings:
    """Settings of a training.

    Attributes:
        steps: number of optimiser steps.
        batch: number of texts in each step.
        rate: highest learning rate of AdamW. The rate rises for RISE steps and then falls to 0.
        seed: seed of the split and the masks.
    """

    steps: int = 400
    batch: int = 16
    rate: float = 1e-4
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.rate * min((step + 1) / RISE, 1.0 - step / self.steps)


class WeightTraining(Training):
    """Trains weights with AdamW; a checkpoint is {facts, step, weights, optimizer}.

    Equal plans, facts and weights give equal results on one machine.

    Args:
        weights: name -> tensor that is trained.
        plan: settings of the training.
        facts: settings that the result depends on; a checkpoint with other settings is refused.
        betas: AdamW's decay rates of the gradient's first and second moments.
    """

    def __init__(
        self, weights: Mapping[str, Tensor], plan: TuneSettings, facts: Mapping[str, Any],
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> None:  # fmt: skip
        self.steps, self._plan, self._facts, self._weights = plan.steps, plan, facts, weights
        trained = [weight.requires_grad_() for weight in weights.values()]
        self._optimizer = AdamW(trained, plan.rate, betas, weight_decay=0.0)

    def losses(self, random: np.random.Generator) -> Iterator[Tensor]:
        """Yield the parts of a step's loss, whose gradients are added."""
        raise NotImplementedError

    def advance(self) -> float:
        total = 0.0
        for loss in self.losses(np.random.default_rng((self._plan.seed, self.step))):
            torch.autograd.backward(loss)
            total += loss.item()
        descend(self._optimizer, self._plan.rate_at(self.step))
        self.step += 1
        return total

    def state(self) -> dict[str, Any]:
        return {
            "facts": self._facts, "step": self.step, "weights": dict(self._weights),
            "optimizer": self._optimizer.state_dict(),
        }  # fmt: skip

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint of the same facts.

        Raises:
            InvalidModel: the file is damaged.
            InvalidInput: the checkpoint belongs to another run.
        """
        state = load_checkpoint(path, next(iter(self._weights.values())).device)
        with readable(path):
            begun = dict(state["facts"])
        check_same(path, self._facts, begun, ": name a new folder")
        with readable(path):
            step, saved, averages = int(state["step"]), state["weights"], state["optimizer"]
            if not 0 <= step <= self.steps:
                raise ValueError("step")
        restore(path, [(self._weights, saved)], [(self._optimizer, averages)])
        self.step = step


def descend(optimizer: AdamW, rate: float) -> None:
    """Clip the gradients to norm 1, do an optimiser step, and clear the gradients."""
    for group in optimizer.param_groups:
        torch.nn.utils.clip_grad_norm_(group["params"], 1.0)
        group["lr"] = rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Return the state that :meth:`Training.state` gave; raise InvalidModel for a damaged file."""
    with readable(path):
        return dict(torch.load(path, map_location=device, weights_only=True))


def restore(
    path: Path,
    tensors: Sequence[tuple[Mapping[str, Tensor], Mapping[str, Tensor]]],
    optimizers: Sequence[tuple[Optimizer, Mapping[str, Any]]],
) -> None:
    """Copy weights and optimiser states from a checkpoint.

    Args:
        path: the checkpoint, for error messages.
        tensors: pairs of this run's tensors and the checkpoint's, by name.
        optimizers: pairs of an optimiser and its state in the checkpoint.

    Raises:
        InvalidModel: the file is damaged.
        InvalidInput: a tensor has another shape, because the checkpoint is of a model of another
            size.
    """
    for here, there in tensors:
        with readable(path):
            named = dict.fromkeys((*here, *there))
            now, begun = ({n: _shape(one.get(n)) for n in named} for one in (here, there))
        check_same(path, now, begun, ": name a new folder, or the model that it was begun with")
    with readable(path), torch.no_grad():
        for optimizer, averages in optimizers:
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({**averages, "param_groups": groups})
            kinds = {frozenset(own) for own in optimizer.state.values()}
            for weight, own in optimizer.state.items():
                if len(kinds) > 1 or any(a.shape not in ((), weight.shape) for a in own.values()):
                    raise ValueError("averages")
        for here, there in tensors:
            for name, tensor in here.items():
                tensor.copy_(there[name])


def _shape(tensor: Tensor | None) -> list[int] | None:
    return None if tensor is None else list(tensor.shape)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn every error inside the block into an InvalidModel that names the checkpoint."""
    try:
        yield
    except Exception as error:  # Unpickling may raise any error.
        # PyTorch's own message advises loading the file in an unsafe mode that runs its code.
        fix = f"it cannot be read ({type(error).__name__}); remove it to begin anew"
        raise InvalidModel("checkpoint", str(path), fix) from None


def check_same(path: Path, now: Mapping[str, Any], begun: Mapping[str, Any], fix: str) -> None:
    """Raise InvalidInput for the first setting that differs from the checkpoint's.

    Args:
        now: this run's settings.
        begun: the checkpoint's settings.
        fix: end of the error message.
    """
    for name, value in now.items():
        if begun.get(name) != value:
            raise InvalidInput(name, value, f"{path} was begun with {begun.get(name)}{fix}")
