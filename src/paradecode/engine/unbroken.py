"""Operations of the engine that nothing leaves half-way."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import current_thread, main_thread
from typing import Any, Protocol, TypeVar, cast

Operation = TypeVar("Operation", bound=Callable[..., Any])
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signal, name)
]


class Operated(Protocol):
    """What such an operation needs of its object.

    Attributes:
        inside: an operation is going on.
    """

    inside: bool

    def settle(self) -> None:
        """Do what was put off."""


@contextmanager
def interrupts_behind() -> Iterator[None]:
    """Ctrl-C and other signals of which a handler may raise take effect at the end of the block.

    Python raises between any two instructions: books would be half written, and tokens that the
    backend has made would be lost.
    """
    handlers: dict[int, Callable[[int, Any], Any]] = {}
    if current_thread() is main_thread():  # Others are not interrupted.
        for number in SIGNALS:
            handler = signal.getsignal(number)
            if callable(handler):  # Else it is of another language, or ends the process.
                handlers[number] = handler
    caught: list[tuple[int, Any]] = []
    for number in handlers:
        signal.signal(number, lambda number, frame: caught.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in caught[-1:]:
            handlers[number](number, frame)


def unbroken(operation: Operation) -> Operation:
    """A method that runs to its end: Ctrl-C and what is put off (``settle``) come behind it."""

    @wraps(operation)
    def run(self: Operated, *args: Any) -> Any:
        if self.inside:  # A part of another operation.
            return operation(self, *args)
        with interrupts_behind():
            self.settle()
            self.inside = True
            try:
                return operation(self, *args)
            finally:
                self.inside = False
                self.settle()

    return cast(Operation, run)
