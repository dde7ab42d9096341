"""The base classes of commit policies."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from paradecode.core.decoder import Apply
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Logits
from paradecode.methods.canvas.canvas import Canvas, Decision, Positions, View
from paradecode.methods.parts import make, part


class Policy:
    """Decides which proposals become permanent. A dataclass; each request has its own object.

    Fields declared with ``parameter`` or ``choice`` are its settings. Other fields are its state;
    declare them with ``field(init=False)`` or set them in :meth:`start`.

    Attributes:
        observes: the positions of a view: the ``masked`` ones of the window, all of the ``window``,
            or all positions of the output (``canvas``) that the forward computed.
        revises: whether the policy may mask decided positions again; then text is shown only after
            the window has moved past it, or at the end.
        clashes: ``cache=name`` or ``blocks=name`` -> why this policy cannot work with it, and what
            to use instead. ``cache=*`` means every cache but the default. Block rules and caches
            have the same attribute.
        nested: number of policies inside this one.
        driven: whether it has a loop of its own, so that it cannot be inside another policy.
    """

    observes: Literal["masked", "window", "canvas"] = "masked"
    revises: bool = False
    clashes: Mapping[str, str] = MappingProxyType({})
    nested: int = 0
    driven: bool = False

    def start(self, canvas: Canvas) -> None:
        """Called before the first forward; tokens that are known already may be committed here."""

    def fuse(self, logits: Logits, positions: Positions) -> Logits:
        """Change the logits [K, V] about ``positions`` [K] before tokens are chosen from them."""
        return logits

    def prepare(self, view: View) -> Generator[Apply, Any, None]:
        """Run the networks that :meth:`decide` needs for this view."""
        return
        yield  # Makes it a generator.

    def decide(self, view: View) -> Decision:
        """The decision after a forward."""
        raise NotImplementedError


DEPTH = 4
"""The most policies that may be nested in one another."""

BREADTH = ("masked", "window", "canvas")


@dataclass
class Wrapper(Policy):
    """A policy on top of another one, ``inner``, whose properties it takes over."""

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
