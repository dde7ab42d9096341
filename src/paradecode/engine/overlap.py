"""Runs a forward of the target, and meanwhile what a method does with another model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

from paradecode.core.decoder import TARGET, Forward, Overlap
from paradecode.core.errors import DecoderError
from paradecode.engine.forward import PendingForward, by_model_and_layers

Result = TypeVar("Result")
MAX_CALLS = 4096
"""Requests of one ``meanwhile`` before it counts as stuck."""


class PendingOverlap:
    """An :class:`Overlap` that was asked for: the target's forward, and forwards beside it.

    Attributes:
        forward: the target's forward.
        side: the forward that ``meanwhile`` waits for; None when it has ended.
    """

    def __init__(self, asked: Overlap, ask: Callable[[Forward], PendingForward]) -> None:
        if not isinstance(asked.forward, Forward) or asked.forward.model != TARGET:
            raise DecoderError("an overlap needs a forward of the target")
        self.forward = ask(asked.forward)
        self._generator, self._ask = asked.meanwhile, ask
        self._result: Any = None
        self._error: Exception | None = None
        self._calls = 0
        self.side: PendingForward | None = None
        self._send(None)

    @property
    def error(self) -> Exception | None:
        return self.forward.error or self._error

    @property
    def reply(self) -> tuple[Any, Any] | None:
        """The replies of both sides, or None until both are there."""
        if self.side is not None or self.forward.reply is None:
            return None
        return self.forward.reply, self._result

    @property
    def ready(self) -> bool:
        """Whether ``meanwhile`` can go on."""
        side = self.side
        return side is not None and (side.reply is not None or side.error is not None)

    def go_on(self) -> None:
        """Resume ``meanwhile`` with the reply of its forward."""
        assert self.side is not None
        if self.side.error is not None:
            self._fail(self.side.error)
            return
        started = time.perf_counter()
        self._send(self.side.reply)
        self.forward.owner.timer.decoder += time.perf_counter() - started

    def close(self) -> Exception | None:
        """End ``meanwhile``; returns the exception that this raises."""
        self.side = None
        try:
            self._generator.close()
        except Exception as error:  # It resists its end, or yields once more.
            return error
        return None

    def _send(self, reply: Any) -> None:
        self._calls += 1
        try:
            asked = self._generator.send(reply)
            if not isinstance(asked, Forward) or asked.model == TARGET:
                raise DecoderError("meanwhile only forwards of other models can run")
            if self._calls > MAX_CALLS:
                raise DecoderError(f"meanwhile made {MAX_CALLS} requests beside one forward")
            self.side = self._ask(asked)
        except StopIteration as end:
            self._result, self.side = end.value, None
        except Exception as error:  # The method's own code: it ends this request only.
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._error = error
        self.close()


def go_on(overlaps: Sequence[PendingOverlap]) -> None:
    for overlap in overlaps:
        overlap.go_on()


def run_sides(
    overlaps: Sequence[PendingOverlap], run: Callable[[list[PendingForward]], None],
    going: Callable[[], bool],
) -> None:  # fmt: skip
    """Run the methods' ``meanwhile`` parts as long as the target's forward is ``going``.

    The next step continues what is left then; a prompt has only the part of this step.
    """
    while going():
        asked = [overlap.side for overlap in overlaps if overlap.side is not None]
        for group in by_model_and_layers(asked):
            run(group)
        if not all(overlap.ready for overlap in overlaps if overlap.side is not None) or not asked:
            return
        go_on([overlap for overlap in overlaps if overlap.ready])


def beside(call: Callable[[], Result], meanwhile: Callable[[Callable[[], bool]], None]) -> Result:
    """The result of ``call``, which another thread runs while ``meanwhile`` runs here. The
    argument of ``meanwhile`` says whether the thread still runs."""
    found: Future[Result] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:
            found.set_exception(error)

    thread = Thread(target=run, name="beside")
    thread.start()
    try:
        meanwhile(lambda: not found.done())
    finally:
        thread.join()
    return found.result()
