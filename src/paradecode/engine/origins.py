"""Which forward decided each token of an output, and what is decided on the canvas behind it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from paradecode.core.trace import Step


class Origins:
    """Follows the trace of one output, for those who are told of it.

    Args:
        there: tokens of the output that it goes on from.

    Attributes:
        forwards: of each output token the number of the target forward that decided it, from 1;
            0 where the token was there before the first.
    """

    def __init__(self, there: int) -> None:
        self.forwards = array("L", [0]) * there
        self._canvas: dict[int, tuple[int, int]] = {}
        self._length = self._steps = 0

    def follow(self, trace: Sequence[Step], tokens: int, forward: int) -> None:
        """Read the steps that are new.

        Args:
            tokens: of the output. A commit that failed has left some that no step has.
            forward: decided those.
        """
        for step in trace[self._steps :]:
            self._add(step)
        self._steps = len(trace)
        self.forwards.extend([forward] * (tokens - len(self.forwards)))

    def _add(self, step: Step) -> None:
        before = step.forward
        if step.canvas is not None:
            for offset in step.canvas.revoked:
                self._canvas.pop(offset, None)
            decided = zip(step.canvas.offsets, step.canvas.tokens, strict=True)
            self._canvas.update((offset, (token, step.forward)) for offset, token in decided)
            before, self._length = 0, step.canvas.length
        for place in range(len(self.forwards), len(self.forwards) + len(step.tokens)):
            self.forwards.append(self._canvas.pop(place, (0, before))[1])

    @property
    def provisional(self) -> tuple[int | None, ...]:
        """The canvas behind the output: the token that is decided there, or None where masked."""
        places = range(len(self.forwards), self._length)
        return tuple(self._canvas.get(place, (None,))[0] for place in places)
