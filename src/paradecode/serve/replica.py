"""Run one worker process: start it, read its events, and restart it if it dies or hangs."""

from __future__ import annotations

import asyncio
import logging
import time
from asyncio.subprocess import Process
from collections.abc import Callable
from contextlib import suppress

from paradecode.core.errors import InvalidInput
from paradecode.serve import wire
from paradecode.serve.call import WorkerCall
from paradecode.serve.failures import stopping
from paradecode.serve.lines import WireError, decode, encode
from paradecode.serve.spare import Spare
from paradecode.serve.worker.settings import WorkerSettings
from paradecode.serve.workers import Fate

_log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds before a worker that died early is restarted: the first pause and the longest.

Each pause is twice as long as the one before it.
"""

STEADY = 30.0
"""Seconds of running after which a dead worker is restarted at once.

A worker that has made tokens, or that dies for the first time, is restarted at once as well.
"""

GRACE = 5.0
"""Seconds that a worker has to exit by itself before it is killed."""

BURST = 32
"""Number of events after which other tasks may run, such as the readers of the events."""

LOOKS, LOOK = 8, 2.0
"""The number of times that a silent worker is asked before it counts as hung, and seconds between.

The first is the least number, and the second is the longest time.
"""

UNWELL = 10.0
"""Seconds of silence after which a worker counts as unwell.

Other workers are preferred to it, and the server does not report that it is healthy.
"""


class Replica:
    """One worker of a model, as the front process sees it.

    Args:
        name: name of the model, for the log.
        observe: called with the fate of each request.
        changed: called when the worker has become ready or has ended.
        hang_seconds: seconds after which a worker that has work and does not answer is killed. A
            worker answers between two forwards, whatever it is busy with.
        load_seconds: seconds after which a worker that has not loaded its model is killed.
        spare: starts the worker's processes.
        known: what a worker of this model said when it was ready, earlier.

    Attributes:
        ready: the worker's message after loading the model; None while the worker does not run.
        known: the last such message; it stays over restarts.
        calls: id -> call that the worker has not finished.
        leaving: whether the worker takes no more requests.
        life: the task that reads events; it ends when the worker will not be restarted.
        served: number of calls that the worker has received.
        restarts: how many times the worker was restarted.
        failed: why the worker could not be restarted the last time; None if it could.
    """

    def __init__(
        self,
        name: str,
        settings: WorkerSettings,
        observe: Callable[[Fate], None],
        changed: Callable[[], None],
        hang_seconds: float,
        load_seconds: float,
        spare: Spare,
        known: wire.Ready | None = None,
    ) -> None:
        self._name, self._settings, self._spare = name, settings, spare
        self._hang_seconds, self._load_seconds = hang_seconds, load_seconds
        self._look = min(hang_seconds / LOOKS, LOOK)
        self._observe, self._changed = observe, changed
        self.ready: wire.Ready | None = None
        self.known = known
        self.failed: str | None = None
        self.calls: dict[str, WorkerCall] = {}
        self.life: asyncio.Task[None] | None = None
        self.leaving = self._ending = self._hung = self._useful = False
        self.served = self.restarts = self._silent = 0
        self._process: Process | None = None
        self._writing = asyncio.Lock()

    @property
    def load(self) -> int:
        """Number of outputs that the worker has not finished."""
        return sum(max(call.outputs, 1) for call in self.calls.values())

    @property
    def open(self) -> bool:
        return self.ready is not None and not self.leaving

    @property
    def well(self) -> bool:
        """True if the worker takes requests and answers in time."""
        return self.open and self._silent * self._look < UNWELL

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the worker, and keep it running. Return when the worker is ready.

        Raises:
            InvalidInput: with the worker's message, if it cannot load the model in time.
        """
        said = await self._launch()
        if said is not None:
            fix = said.removeprefix(f"model: {self._name!r} is not usable; ")
            raise InvalidInput("model", self._name, fix)
        self.life = asyncio.create_task(self._live())

    async def send(self, call: WorkerCall) -> None:
        """Send a request to the worker.

        If the worker has died or dies, the call is marked as lost.
        """
        line = encode(call.message)  # If this raises, nothing has changed.
        if self._process is None or not self.open:
            call.lose()
            return
        self.calls[call.id] = call
        self.served += 1
        await self._write(line)

    def cancel(self, call: WorkerCall) -> None:
        """Tell the worker to end a request. Its last events still arrive."""
        if not call.over and call.id in self.calls:
            self._put(encode(wire.Cancel(id=call.id)))

    def stop(self) -> None:
        """Tell all readers that the server stops, and take no more requests."""
        self.leaving = self._ending = True
        for call in self.calls.values():
            call.end(stopping(call.id))

    async def drain(self) -> None:
        """Let the worker finish its requests and end. It is not restarted."""
        self._ending = self.leaving = True
        await self._write(encode(wire.Drain()))

    async def close(self) -> None:
        """End the worker now."""
        self._ending = self.leaving = True
        await self._hang_up()
        if self.life is not None:
            self.life.cancel()
            with suppress(asyncio.CancelledError):
                await self.life
            await self._hang_up()  # The task may have started another process.
        self._lose_all()

    async def _hang_up(self) -> None:
        if self._process is not None:
            with suppress(OSError):
                assert self._process.stdin is not None
                self._process.stdin.close()
            await self._end()

    async def _launch(self) -> str | None:
        """Start the process, and wait until it is ready. Return an error text if it cannot load."""
        process = self._process = await self._spare.take()
        clock = asyncio.create_task(self._time_loading())
        try:
            # What the last worker measured need not be measured again.
            costs = {} if self.known is None else {"costs": self.known.costs}
            await self._write(self._settings.model_copy(update=costs).line())
            event, _ = await self._read() or (None, 0)
        finally:
            clock.cancel()
        if isinstance(event, wire.Ready):
            self.ready = self.known = event
            self.leaving = self._ending
            self._changed()
            return None
        await self._end()
        if isinstance(event, wire.Failure):
            return event.message
        if clock.done() and not clock.cancelled():
            return (
                f"its worker was killed: it did not load the model in {self._load_seconds:g} s; "
                "see what it logged, or give --load-timeout more seconds"
            )
        return f"its worker ended with status {process.returncode} before it was ready"

    async def _live(self) -> None:
        """Read the worker's events, and restart the worker whenever it has ended."""
        pause = 0.0
        while True:
            started, self._useful = time.monotonic(), False
            if self.ready is not None:
                watch = asyncio.create_task(self._watch())
                try:
                    await self._listen()
                finally:
                    watch.cancel()
                self._lose_all()
                await self._end()
            if self._ending:
                return
            if self._useful or time.monotonic() - started > STEADY:
                pause = 0.0
            _log.warning("a worker of %s ended; a new one starts in %.1f s", self._name, pause)
            await asyncio.sleep(pause)
            pause = min(max(2 * pause, FIRST_PAUSE), LONGEST_PAUSE)
            self.restarts += 1
            try:
                self.failed = await self._launch()
            except OSError as error:
                self.failed = str(error)
            if self.failed is not None:
                _log.error("a worker of %s did not start: %s", self._name, self.failed)
                self._changed()

    async def _time_loading(self) -> None:
        """Kill the worker if it has not loaded in time. The time is counted as in ``_watch``."""
        for _ in range(LOOKS):
            await asyncio.sleep(self._load_seconds / LOOKS)
        self._kill()

    async def _watch(self) -> None:
        """Kill the worker if it has work and does not answer.

        The silence is counted in unanswered questions, not in seconds. So a pause of this process
        counts as one question.
        """
        self._silent, self._hung = 0, False
        while not (self.calls and self._silent * self._look >= self._hang_seconds):
            self._put(encode(wire.AskStats(id=wire.WORKER)))
            await asyncio.sleep(self._look)
            self._silent += 1
        _log.error("a worker of %s has hung for %g s", self._name, self._hang_seconds)
        self._hung = True
        self._kill()

    async def _listen(self) -> None:
        """Deliver the worker's events to their calls until the worker ends."""
        handed = 0
        while (read := await self._read()) is not None:
            event, size = read
            if not isinstance(event, (wire.TokenizedPrompt, wire.DecodedText)):
                self._silent = 0  # These two are answered even if the engine hangs.
            handed += 1
            if handed % BURST == 0:  # Reading lines that have arrived never pauses.
                await asyncio.sleep(0)
            call = self.calls.get(getattr(event, "id", wire.WORKER))
            if call is None:
                if isinstance(event, wire.Failure):
                    _log.warning("a worker of %s says: %s", self._name, event.message)
                continue
            if isinstance(event, wire.Failure) and event.status == 503:
                self.leaving = True  # A signal stops this worker, so it gets no requests.
                del self.calls[call.id]
                call.lose()
                continue
            self._useful |= isinstance(event, wire.OutputChunk)
            told = isinstance(event, wire.Accepted) and call.accepted  # Counted for a dead worker.
            fate = call.outputs > 0 and not told
            if fate and isinstance(event, (wire.Accepted, wire.Done, wire.Failure)):
                self._observe(event)
            if not call.receive(event, size):
                self.cancel(call)
                self._observe(call.give_up())
            if call.over:
                del self.calls[call.id]
                self._changed()

    async def _read(self) -> tuple[wire.Event, int] | None:
        """Return the next event with its size in bytes, or None at the end of the stream.

        A line that is no event is logged and skipped.
        """
        assert self._process is not None
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except OSError:
                return None
            except ValueError:  # The line is too long. Its rest is read as garbage.
                _log.error("a worker of %s wrote an endless line", self._name)
                continue
            if not line.endswith(b"\n"):
                return None
            try:
                return decode(line, wire.EVENTS), len(line)
            except WireError as error:
                _log.error("a worker of %s wrote a bad line: %s", self._name, error)
                if error.id in self.calls:
                    message = "the worker's answer could not be read"
                    self.cancel(self.calls[error.id])
                    return wire.Failure(id=error.id, status=500, message=message), 0

    def _put(self, line: bytes) -> None:
        """Write a short line without waiting for room in the pipe."""
        if self._process is not None and self._process.stdin is not None:
            # If the worker has ended, the reader of its events notices.
            with suppress(ConnectionError, RuntimeError):
                self._process.stdin.write(line)

    async def _write(self, line: bytes) -> None:
        self._put(line)  # Now, so that a later cancel follows it.
        if self._process is not None and self._process.stdin is not None:
            with suppress(ConnectionError, RuntimeError):
                async with self._writing:  # Before Python 3.12 only one task may wait for room.
                    await self._process.stdin.drain()

    async def _end(self) -> None:
        """Wait for the process to end, and kill it if it does not."""
        assert self._process is not None
        try:
            await asyncio.wait_for(self._process.wait(), GRACE)
        except asyncio.TimeoutError:
            self._kill()
            await self._process.wait()

    def _kill(self) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()

    def _lose_all(self) -> None:
        self.ready = None
        calls, self.calls = self.calls, {}
        for call in calls.values():
            call.lose(self._hung)
        self._changed()
