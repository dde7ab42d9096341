"""What a commit policy is."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from paradecode.core.logits import Logits
from paradecode.core.request import Apply
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Decision, View


class Policy:
    """Decides which proposals become permanent. A dataclass, one object a request.

    Fields declared with ``parameter`` or ``choice`` are its settings; further fields are its
    memory (declare them with ``field(init=False)`` or set them in :meth:`start`).

    Attributes:
        observes: which positions come in a view: ``masked`` ones of the window, all of the
            ``window``, or all of the output (``canvas``) that the forward computed.
        revises: the policy may mask decided positions again; text is then shown only when the
            window has moved past it, or at the end.
        clashes: ``cache=name`` or ``blocks=name`` to why this policy cannot work with it, and what
            to use instead. Block rules and caches have the same attribute.
        nested: policies underneath this one, one below the other.
    """

    observes: Literal["masked", "window", "canvas"] = "masked"
    revises: bool = False
    clashes: Mapping[str, str] = MappingProxyType({})
    nested: int = 0

    def start(self, canvas: Canvas) -> None:
        """Before the first forward. Tokens that are known beforehand may be committed here."""

    def fuse(self, logits: Logits, positions: NDArray[np.int64]) -> Logits:
        """Change the logits [K, V] about ``positions`` [K] before tokens are chosen from them."""
        return logits

    def prepare(self, view: View) -> Generator[Apply, Any, None]:
        """Run the networks that :meth:`decide` needs for this view."""
        return
        yield  # Makes it a generator.

    def decide(self, view: View) -> Decision:
        """What to do after a forward."""
        raise NotImplementedError
