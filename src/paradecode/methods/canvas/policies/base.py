"""The base classes of commit policies, and functions that rank positions and plan steps."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Apply
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Logits
from paradecode.methods.canvas.canvas import Canvas, Decision, Positions, Progress, Scores, View
from paradecode.methods.parts import make, part


class Policy:
    """A policy decides which proposed tokens become permanent.

    A policy is a dataclass, and each request has its own object. Fields declared with ``parameter``
    or ``choice`` are its settings. Other fields are its state; declare them with
    ``field(init=False)`` or set them in :meth:`start`.

    Attributes:
        observes: the positions that a view contains: the ``masked`` ones of the window, all of the
            ``window``, or all positions of the output (``canvas``) that the forward pass computed.
        revises: True if the policy may mask decided positions again. Then text is shown only after
            the window has moved past it, or at the end.
        clashes: ``cache=name`` or ``blocks=name`` -> why this policy cannot work with that part,
            and what to use instead. ``cache=*`` means every cache but the default. Block rules and
            caches have the same attribute.
        nested: number of policies inside this one.
        driven: True if the policy has a loop of its own, so that it cannot be inside another
            policy.
    """

    observes: Literal["masked", "window", "canvas"] = "masked"
    revises: bool = False
    clashes: Mapping[str, str] = MappingProxyType({})
    nested: int = 0
    driven: bool = False

    def start(self, canvas: Canvas) -> None:
        """Prepare the policy before the first forward pass; it may commit known tokens here."""

    def fuse(self, logits: Logits, positions: Positions) -> Logits:
        """Change the logits [K, V] of ``positions`` [K] before tokens are chosen from them."""
        return logits

    def prepare(self, view: View) -> Generator[Apply, Any, None]:
        """Run the networks that :meth:`decide` needs for this view."""
        return
        yield  # Makes it a generator.

    def decide(self, view: View) -> Decision:
        """Return the decision after a forward pass."""
        raise NotImplementedError


DEPTH = 4
"""The most policies that may be nested in one another."""

BREADTH = ("masked", "window", "canvas")


@dataclass
class Wrapper(Policy):
    """A policy on top of another policy, ``inner``, whose attributes it takes over."""

    base: str = part("static", "policy", "policy underneath")

    def __post_init__(self) -> None:
        where = f"{type(self).__name__.lower()}.base"
        self.inner: Policy = make("policy", self.base, where)
        if self.inner.driven:
            raise InvalidInput(where, self.base, "it has a loop of its own: use it by itself")
        self.nested = 1 + self.inner.nested
        if self.nested > DEPTH:
            raise InvalidInput("base", self.base, f"put at most {DEPTH} policies on one another")
        both = (self.observes, self.inner.observes)
        self.observes: Literal["masked", "window", "canvas"] = max(both, key=BREADTH.index)
        self.revises = self.revises or self.inner.revises
        self.clashes = {**self.inner.clashes, **self.clashes}

    def start(self, canvas: Canvas) -> None:
        self.inner.start(canvas)

    def fuse(self, logits: Logits, positions: Positions) -> Logits:
        return self.inner.fuse(logits, positions)

    def prepare(self, view: View) -> Generator[Apply, Any, None]:
        yield from self.inner.prepare(view)

    def decide(self, view: View) -> Decision:
        return self.inner.decide(view)


# Functions for policies that rank positions or plan their steps.

SCORES: Mapping[str, Callable[[View], Scores]] = {
    "confidence": lambda view: view.confidence,
    "margin": lambda view: view.margin,
    "entropy": lambda view: -view.entropy,
    "random": lambda view: view.uniform(0),  # An order that is fixed for the request.
}
"""The scores by which positions are ranked, best first."""

NAMES = {
    "low_confidence": "confidence", "maskgit_plus": "confidence", "topk_margin": "margin",
}  # fmt: skip
"""Names of scores in the models' own scripts -> our names."""


def scores_of(view: View, name: str) -> Scores:
    """Return float64 [K]: the score ``name``, ours or of the models' scripts."""
    return SCORES[NAMES.get(name, name)](view)


def share(progress: Progress) -> int:
    """Return the number of planned steps that the block gets, in proportion to its masks.

    The result is at least 1.
    """
    p = progress
    after = p.before + p.block_masks
    return max(1, p.steps * after // p.masks - p.steps * p.before // p.masks)


def quota(progress: Progress) -> int:
    """Return the number of positions that this forward commits when ``steps`` are spread evenly.

    The block gets its share T of ``steps`` for its m masks. The first ``m % T`` steps commit one
    position more than the other steps. If T divides m this is LLaDA's schedule.
    """
    masks, steps = progress.block_masks, share(progress)
    return max(1, masks // steps + (progress.block_step < masks % steps))


def times(steps: int, eps: float) -> NDArray[np.float32]:
    """Return float32 [steps + 1]: times from 1 to eps, rounded as torch.linspace rounds them."""
    at = np.arange(steps + 1, dtype=np.float32)
    width = (np.float32(eps) - np.float32(1)) / np.float32(steps)
    rising = np.float32(1) + width * at
    falling = np.float32(eps) - width * (np.float32(steps) - at)
    return np.where(at < (steps + 1) // 2, rising, falling).astype(np.float32)


class Planned(Policy):
    """A policy that counts the planned steps of each block in ``step``.

    The count may run ahead of the forward passes, because a step that commits nothing is skipped.
    """

    def start(self, canvas: Canvas) -> None:
        self.block, self.step = -1, 0

    def begins(self, view: View) -> bool:
        """Return whether this is the first forward pass of a block; ``step`` is 0 then."""
        if view.window.block == self.block:
            return False
        self.block, self.step = view.window.block, 0
        return True


def masks_of(view: View) -> int:
    """Return the number of masks that are left among the positions that share the planned steps."""
    return int(view.canvas.masked[view.window.shared].sum())


def noisy(view: View, scores: Scores, noise: float, step: int) -> Scores:
    """Return the scores divided by the temperature ``noise``, plus Gumbel numbers of the step.

    A ``noise`` of 0 returns the scores unchanged.
    """
    return scores if noise == 0.0 else scores / noise + view.gumbel(step)
