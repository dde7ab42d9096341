"""The state of one request, or question, that was sent to a worker process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from dataclasses import dataclass

from paradecode.serve import wire
from paradecode.serve.buffer import Bounds, Buffer

SLOW = "the events of this request were read too slowly"
OF_REQUESTS = (wire.Accepted, wire.OutputChunk, wire.BranchNews, wire.Done, wire.Failure)
OF_QUESTIONS = (
    wire.TokenizedPrompt,
    wire.DecodedText,
    wire.WorkerStats,
    wire.CachedBlocks,
    wire.Failure,
)


@dataclass(frozen=True)
class Lost:
    """Marks in a buffer the place where the worker ended, before the request had ended."""


class WorkerCall:
    """The server's front process keeps one of these for each request at a worker.

    Attributes:
        message: the request as it was sent.
        outputs: number of outputs that the request wants; 0 for a question, which has one answer.
        over: whether nothing more can come from the worker.
        unwanted: whether nobody reads the events any more.
        accepted: whether this worker, or an earlier one that died, has accepted the request.
        lost: whether the reader of the events has reached the place where the worker ended.
        hung: whether the worker ended because it hung; this request may be the cause.
    """

    def __init__(
        self,
        message: wire.Generate | wire.Question,
        bounds: Bounds | None = None,
        accepted: bool = False,
        done: Collection[int] = (),
    ) -> None:
        self.message = message
        self.outputs = outputs_of(message) if isinstance(message, wire.Generate) else 0
        self.accepted = accepted
        self.over = self.unwanted = self.lost = self.hung = False
        self.buffer: Buffer[wire.Event | Lost] = Buffer(bounds)
        self._done = set(done)
        self._owed = self.outputs - len(self._done)  # Now, as ``_done`` may grow before reading.

    @property
    def id(self) -> str:
        return self.message.id

    async def events(self) -> AsyncIterator[wire.OutputEvent]:
        """Yield the request's events until it ends. Set ``lost`` if the worker ended first."""
        left = self._owed
        while left:
            event = await self.buffer.get()
            if isinstance(event, Lost):
                self.lost = True
                return
            yield event  # type: ignore[misc]  # receive() lets no others in.
            left = 0 if isinstance(event, wire.Failure) else left - isinstance(event, wire.Done)

    def receive(self, event: wire.Event, size: int) -> bool:
        """Take an event from the worker. Return False if the reader is too slow for it.

        An event that does not fit the present state of the request is ignored.
        """
        if not isinstance(event, OF_REQUESTS if self.outputs else OF_QUESTIONS):
            return True
        if isinstance(event, (wire.OutputChunk, wire.Done)) and (
            event.index in self._done or event.index >= self.outputs
        ):
            return True
        if isinstance(event, wire.Accepted):
            self.accepted = True
        elif isinstance(event, wire.Done):
            self._done.add(event.index)
            self.over = len(self._done) == self.outputs
        elif not isinstance(event, (wire.OutputChunk, wire.BranchNews)):
            self.over = True
        return self.unwanted or self.buffer.put(event, size)

    def lose(self, hung: bool = False) -> None:
        """Record that the worker has ended."""
        self.over, self.hung = True, hung
        if not self.unwanted:
            self.buffer.put(Lost(), 0)

    def end(self, failure: wire.Failure) -> None:
        """End the request: the reader gets the events that have arrived, and then ``failure``."""
        if not self.unwanted:
            self.unwanted = True
            self.buffer.put(failure, 0)

    def give_up(self) -> wire.Failure:
        """Replace the unread events by a failure, because the reader is too slow.

        Return the failure.
        """
        self.unwanted = True
        failed = wire.Failure(id=self.id, status=503, message=SLOW)
        self.buffer.replace(failed)
        return failed


def outputs_of(message: wire.Generate) -> int:
    """Return ``n`` of a request, or 1 if ``n`` is no positive integer, which the worker refuses."""
    n = message.sampling.get("n", 1)
    return n if isinstance(n, int) and not isinstance(n, bool) and n > 0 else 1
