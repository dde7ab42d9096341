"""Policies that work on top of another one."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Logits
from paradecode.core.request import Apply
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.policies.base import Policy
from paradecode.methods.canvas.view import Decision, View
from paradecode.methods.parameters import part
from paradecode.methods.parts import make

DEPTH = 4
"""Policies on top of one another."""

BREADTH = ("masked", "window", "canvas")


@dataclass
class Wrapper(Policy):
    """A policy with another one underneath, ``inner``, whose properties it takes over."""

    base: str = part("static", "policy", "policy underneath")

    def __post_init__(self) -> None:
        self.inner: Policy = make("policy", self.base, f"{type(self).__name__.lower()}.base")
        self.nested = 1 + self.inner.nested
        if self.nested > DEPTH:
            raise InvalidInput("base", self.base, f"put at most {DEPTH} policies on one another")
        both = (self.observes, self.inner.observes)
        self.observes: Literal["masked", "window", "canvas"] = max(both, key=BREADTH.index)
        self.revises = self.revises or self.inner.revises
        self.clashes = {**self.inner.clashes, **self.clashes}

    def start(self, canvas: Canvas) -> None:
        self.inner.start(canvas)

    def fuse(self, logits: Logits, positions: NDArray[np.int64]) -> Logits:
        return self.inner.fuse(logits, positions)

    def prepare(self, view: View) -> Generator[Apply, Any, None]:
        yield from self.inner.prepare(view)

    def decide(self, view: View) -> Decision:
        return self.inner.decide(view)
