"""The base class of block rules."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.view import Decision, View, Window


class Blocks:
    """Says where masks may be decided. A dataclass; each request has its own object.

    Fields declared with ``parameter`` or ``choice`` are settings: ``blocks=sliding(masks=16)``.

    Attributes:
        clashes: see :class:`Policy`.
    """

    clashes: Mapping[str, str] = MappingProxyType({})

    def start(self, canvas: Canvas, block_length: int) -> None:
        """Called before the first forward; ``block_length`` is the method's setting."""
        self.block_length = block_length

    def window(self, canvas: Canvas) -> Window:
        """The window of the next forward; it must have a masked position."""
        raise NotImplementedError

    def narrow(self, view: View) -> Window:
        """The window after a forward: a part of that of ``view``, with a masked position."""
        return view.window

    def after(self, view: View, decision: Decision) -> None:
        """Called after a decision was applied to the canvas."""


def limit(canvas: Canvas, start: int) -> int:
    """One past the last position of a window that begins at ``start``.

    In a model with its own blocks it is the end of a block, because rows were trained to see only
    decided blocks before their own.
    """
    return canvas.reach(start + 1) if canvas.block > 1 else canvas.end
