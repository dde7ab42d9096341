"""A forward of the target, and what a method does with another model meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Thread
from typing import Any, TypeVar

from paradecode.core.errors import DecoderError
from paradecode.core.request import TARGET, Forward, Overlap
from paradecode.engine.forward import PendingForward, by_model_and_layers

Result = TypeVar("Result")


class PendingOverlap:
    """An :class:`Overlap` that was asked for.

    Attributes:
        forward: the target's.
        side: what ``meanwhile`` waits for; None when it has ended.
    """

    def __init__(self, asked: Overlap, ask: Callable[[Forward], PendingForward]) -> None:
        if not isinstance(asked.forward, Forward) or asked.forward.model != TARGET:
            raise DecoderError("an overlap needs a forward of the target")
        self.forward = ask(asked.forward)
        self._generator, self._ask = asked.meanwhile, ask
        self._result: Any = None
        self._error: Exception | None = None
        self.side: PendingForward | None = None
        self._send(None)

    @property
    def error(self) -> Exception | None:
        return self.forward.error or self._error

    @property
    def reply(self) -> tuple[Any, Any] | None:
        """Both replies, when both are there."""
        if self.side is not None or self.forward.reply is None:
            return None
        return self.forward.reply, self._result

    def go_on(self) -> None:
        """Resume ``meanwhile`` if its forward has run."""
        side = self.side
        if side is not None and side.error is not None:
            self._fail(side.error)
        elif side is not None and side.reply is not None:
            self._send(side.reply)

    def close(self) -> None:
        self.side = None
        self._generator.close()

    def _send(self, reply: Any) -> None:
        try:
            asked = self._generator.send(reply)
            if not isinstance(asked, Forward) or asked.model == TARGET:
                raise DecoderError("meanwhile only forwards of other models can run")
            self.side = self._ask(asked)
        except StopIteration as end:
            self._result, self.side = end.value, None
        except Exception as error:  # The method's own code: it ends this request only.
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._error = error
        self.close()


def run_sides(
    overlaps: Sequence[PendingOverlap], run: Callable[[list[PendingForward]], None]
) -> None:
    """Run what the methods do meanwhile, to its end."""
    while True:
        for overlap in overlaps:
            overlap.go_on()
        asked = [overlap.side for overlap in overlaps if overlap.side is not None]
        if not asked:
            return
        for group in by_model_and_layers(asked):
            run(group)


def beside(call: Callable[[], Result], meanwhile: Callable[[], None], apart: bool) -> Result:
    """The result of ``call``; another thread makes it during ``meanwhile`` if they are apart."""
    found: Future[Result] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:
            found.set_exception(error)

    thread = Thread(target=run, name="beside")
    (thread.start if apart else run)()
    try:
        meanwhile()
    finally:
        if apart:
            thread.join()
    return found.result()
