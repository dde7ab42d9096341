"""Runs work that may have to wait deep inside a call, while its caller continues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 0.003
"""Seconds for which the caller waits whenever it starts or resumes work.

Most results arrive sooner. A higher value delays other requests longer.
"""

_thread = threading.local()


class Stopped(BaseException):
    """Raised inside waiting work to end it, because nobody needs its result."""


class Handoff:
    """Runs work in another thread, but never at the same time as its caller: one of the two waits.

    The work may therefore use everything that its caller uses. When the work calls
    :func:`wait_for`, the caller continues, and it resumes the work later.
    """

    def __init__(self) -> None:
        self._ours, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._awaited: Future[object] | None = None
        self._error: BaseException | None = None
        self._stopped = False
        self._left = 0.0

    @property
    def waits(self) -> bool:
        """True if work has begun and is now waiting for a result."""
        return self._awaited is not None

    def run(self, work: Callable[[], None]) -> None:
        """Start the work, and return when it ends or waits; raise its exception."""
        self._left = PATIENCE
        threading.Thread(target=self._work, args=(work,), daemon=True).start()
        self._hand_over()

    def go_on(self) -> None:
        """Resume waiting work if its result has arrived; return when it ends or waits again."""
        if self._awaited is not None and self._awaited.done():
            self._left = PATIENCE
            self._ours.release()
            self._hand_over()

    def stop(self) -> None:
        """End the waiting work."""
        self._stopped = True
        while self.waits:
            self._ours.release()
            with suppress(BaseException):
                self._hand_over()

    def wait(self, awaited: Future[T]) -> T:
        began = time.monotonic()
        with suppress(TimeoutError):
            awaited.exception(max(0.0, self._left))
        self._left -= time.monotonic() - began
        if not awaited.done():
            self._awaited = awaited  # type: ignore[assignment]
            self._theirs.release()
            self._ours.acquire()
            self._awaited = None
        if self._stopped:
            raise Stopped
        return awaited.result()

    def _hand_over(self) -> None:
        self._theirs.acquire()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self, work: Callable[[], None]) -> None:
        _thread.handoff = self
        try:
            work()
        except BaseException as error:
            self._error = error
        finally:
            self._theirs.release()


def wait_for(awaited: Future[T]) -> T:
    """Return the result of a future; meanwhile the engine may run other requests.

    Raises:
        Exception: the exception of the future.
    """
    handoff: Handoff | None = getattr(_thread, "handoff", None)
    return awaited.result() if handoff is None else handoff.wait(awaited)
