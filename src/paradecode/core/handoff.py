"""Work that may have to wait deep inside of a call, while its caller goes on with other things."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError
from contextlib import suppress
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 0.003
"""Seconds that the caller itself waits each time it resumes work. The majority of answers come
sooner."""

_thread = threading.local()


class Stopped(BaseException):
    """Raised where work waits, to end work that nobody wants any more."""


class Handoff:
    """Runs work in a thread, but never at the same time as its caller: one of the two waits.

    The work may therefore use everything that its caller uses. When it calls :func:`wait_for`, the
    caller goes on, and resumes the work later.
    """

    def __init__(self) -> None:
        self._ours, self._theirs = threading.Semaphore(0), threading.Semaphore(0)
        self._awaited: Future[object] | None = None
        self._error: BaseException | None = None
        self._stopped = False
        self._left = 0.0

    @property
    def waits(self) -> bool:
        """Whether there is work that has begun and now waits."""
        return self._awaited is not None

    def run(self, work: Callable[[], None]) -> None:
        """Start the work; return when it ends or waits. Raises what the work raises."""
        self._left = PATIENCE
        threading.Thread(target=self._work, args=(work,), daemon=True).start()
        self._hand_over()

    def go_on(self) -> None:
        """Resume work that waits, if the awaited result is there; return when it ends or waits
        again."""
        if self._awaited is not None and self._awaited.done():
            self._left = PATIENCE
            self._ours.release()
            self._hand_over()

    def stop(self) -> None:
        """End the work that waits."""
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
    """The result of something that happens elsewhere; the engine may run other requests meanwhile.

    Raises:
        Exception: what the future raises.
    """
    handoff: Handoff | None = getattr(_thread, "handoff", None)
    return awaited.result() if handoff is None else handoff.wait(awaited)
