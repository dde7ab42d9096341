"""Stop strings, and how much of the text may be shown while one could still be forming."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class TextStream(Protocol):
    """Turns token ids into text, holding incomplete UTF-8 back."""

    def push(self, token: int) -> str: ...

    def flush(self) -> str: ...


NewTextStream = Callable[[], TextStream]


class Text:
    """The output text of one sequence.

    Args:
        stream: detokeniser, or None when the engine serves bare token ids.
        stops: texts that end the output.
    """

    def __init__(self, stream: TextStream | None, stops: Sequence[str]) -> None:
        self._stream, self._stops = stream, tuple(stops)
        self._longest = max((len(stop) for stop in stops), default=0)
        self.value = ""
        self._sent = 0
        self._stopped = False

    def push(self, token: int) -> bool:
        """Add a token; True if a stop string is now complete (and cut off)."""
        return self._stream is not None and self._add(self._stream.push(token))

    def finish(self) -> None:
        """Add what the detokeniser held back."""
        if self._stream is not None and not self._stopped:
            self._add(self._stream.flush())

    def follow(self, other: Text) -> None:
        """Go on where ``other`` was taken from, so that nothing is shown twice."""
        self._sent = other._sent

    def _add(self, piece: str) -> bool:
        searched = max(0, len(self.value) - self._longest + 1)
        self.value += piece
        found = [at for stop in self._stops if (at := self.value.find(stop, searched)) >= 0]
        if found:
            self.value = self.value[: min(found)]
            self._stopped = True
        return bool(found)

    def take(self, finished: bool) -> str:
        """Text that was not taken yet and that no stop string can take back."""
        end = len(self.value) if finished else len(self.value) - self._held()
        piece = self.value[self._sent : end]
        self._sent = max(self._sent, end)
        return piece

    def _held(self) -> int:
        """Length of the longest end of the text that a stop string starts with."""
        for size in range(min(self._longest - 1, len(self.value)), 0, -1):
            end = self.value[-size:]
            if any(stop.startswith(end) for stop in self._stops):
                return size
        return 0
