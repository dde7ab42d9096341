"""Training that can be stopped and goes on: the loop, its log, and checkpoints."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from paradecode.core.errors import InvalidInput, InvalidModel

CHECKPOINT, LOG = "checkpoint.pt", "log.jsonl"
LOSSES = 20
"""Steps whose losses are averaged for the log."""


class Training:
    """A model on its way; equal plans give equal weights, wherever it is stopped in between.

    Attributes:
        step: optimiser steps done.
        steps: optimiser steps in all.
    """

    step: int = 0
    steps: int

    def advance(self) -> float:
        """One optimiser step; returns the mean loss."""
        raise NotImplementedError

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        raise NotImplementedError

    def save(self, path: Path) -> None:
        """Write a checkpoint; a crash leaves the old one or the new one, never half of one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        torch.save(self.state(), part)
        os.replace(part, path)

    def run(
        self,
        folder: Path,
        should_stop: Callable[[], bool],
        each: Callable[[float], bool],
        checkpoint_seconds: float,
    ) -> bool:
        """Train to the end or until asked to stop; a checkpoint is left either way.

        Args:
            folder: gets CHECKPOINT.
            should_stop: asked before every step.
            each: told the mean loss of the last steps after each one; whether to save now.

        Returns:
            Whether all steps are done.
        """
        losses: list[float] = []
        saved = time.monotonic()
        while self.step < self.steps and not should_stop():
            losses = [*losses[1 - LOSSES :], self.advance()]
            if each(sum(losses) / len(losses)) or time.monotonic() - saved > checkpoint_seconds:
                self.save(folder / CHECKPOINT)
                saved = time.monotonic()
        self.save(folder / CHECKPOINT)
        return self.step >= self.steps


def log(folder: Path, line: Mapping[str, Any]) -> None:
    """Append a line to LOG."""
    with (folder / LOG).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """What :meth:`Training.state` was; raises InvalidModel for a damaged file."""
    with readable(path):
        return dict(torch.load(path, map_location=device, weights_only=True))


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Whatever goes wrong inside is the fault of a checkpoint.

    Raises:
        InvalidModel: in place of every other error.
    """
    try:
        yield
    except Exception as error:  # Unpicklers raise anything.
        fix = f"it cannot be read ({error}); remove it to begin anew"
        raise InvalidModel("checkpoint", str(path), fix) from None


def check_same(path: Path, now: Mapping[str, Any], begun: Mapping[str, Any], fix: str) -> None:
    """Raise InvalidInput for a setting with which the checkpoint was not begun."""
    for name, value in now.items():
        if begun.get(name) != value:
            raise InvalidInput(name, value, f"{path} was begun with {begun.get(name)}{fix}")
