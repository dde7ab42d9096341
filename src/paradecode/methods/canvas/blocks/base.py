"""What a block rule is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Decision, View, Window


class Blocks:
    """Says in which positions masks may be decided. A dataclass, one object a request.

    Fields declared with ``parameter`` or ``choice`` are settings: ``blocks=sliding(masks=16)``.

    Attributes:
        clashes: as in :class:`Policy`.
    """

    clashes: Mapping[str, str] = MappingProxyType({})

    def start(self, canvas: Canvas, block_length: int) -> None:
        """Before the first forward. ``block_length`` is the method's setting."""
        self.block_length = block_length

    def window(self, canvas: Canvas) -> Window:
        """Before a forward: it must hold a masked position."""
        raise NotImplementedError

    def narrow(self, view: View) -> Window:
        """After a forward: a window inside of the one of ``view``, with a masked position in it."""
        return view.window

    def after(self, view: View, decision: Decision) -> None:
        """After the decision was applied to the canvas."""


def limit(canvas: Canvas, start: int) -> int:
    """One past the last position that a window from ``start`` on may hold.

    Rows of a model with blocks of its own were trained to see decided blocks before their own.
    """
    return canvas.reach(start + 1) if canvas.block > 1 else canvas.end
