"""Delays signals such as Ctrl-C until an operation of the engine has ended."""

from __future__ import annotations

import signal

# The functions that the module `signal` wraps; its enumerations would cost 9 us more per step.
from _signal import getsignal as get_handler  # type: ignore[import-not-found]
from _signal import signal as set_handler
from collections.abc import Callable
from functools import wraps
from threading import get_ident, main_thread
from typing import Any, Protocol, TypeVar, cast

Operation = TypeVar("Operation", bound=Callable[..., Any])
SIGNALS = [
    int(getattr(signal, name)) for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name)
]


class Operated(Protocol):
    """An object with uninterrupted operations.

    Attributes:
        inside: True while an operation is running.
    """

    inside: bool

    def settle(self) -> None:
        """Do the work that was postponed during an operation."""


class delayed_signals:
    """Delays Ctrl-C and other signals whose handlers may raise until the end of the block.

    Python could otherwise raise between any two instructions: data would be half written, and
    tokens that the backend has made would be lost. Signals interrupt only the main thread.
    """

    __slots__ = ("caught", "handlers")

    def __enter__(self) -> None:
        self.caught: list[tuple[int, Any]] = []
        self.handlers: list[tuple[int, Callable[[int, Any], Any]]] = []
        if get_ident() != main_thread().ident:
            return
        for number in SIGNALS:
            handler = get_handler(number)
            if callable(handler):  # Others are not Python, or end the process.
                self.handlers.append((number, handler))
                set_handler(number, self._catch)

    def __exit__(self, *_: object) -> None:
        for number, handler in self.handlers:
            set_handler(number, handler)
        for number, frame in self.caught[-1:]:
            dict(self.handlers)[number](number, frame)

    def _catch(self, number: int, frame: Any) -> None:
        self.caught.append((number, frame))


def uninterrupted(operation: Operation) -> Operation:
    """Decorate a method so that signals and postponed work (``settle``) wait until it has ended."""

    @wraps(operation)
    def run(self: Operated, *args: Any) -> Any:
        if self.inside:  # A part of another operation.
            return operation(self, *args)
        with delayed_signals():
            self.settle()
            self.inside = True
            try:
                return operation(self, *args)
            finally:
                self.inside = False
                self.settle()

    return cast(Operation, run)
