"""Keep a spare worker process, which has imported everything and waits for its settings."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

from paradecode.serve.lines import MAX_LINE

COMMAND = (sys.executable, "-m", "paradecode.serve.worker")

LATER, SOON = 3.0, 1.0
"""Seconds after which a spare process is started, to leave the processor to the first requests.

The second number is for servers that load models on demand, which need a spare soon again.
"""


class Spare:
    """Starts worker processes, and keeps one spare process if that is worth its memory.

    Args:
        kept: whether to keep a spare process, because a model has no second worker to continue its
            streams, or is loaded on demand.
        soon: whether the next spare process will be needed soon.
    """

    def __init__(self, kept: bool, soon: bool = False) -> None:
        self._kept, self._soon = kept, soon
        self._process: Process | None = None
        self._timer: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Start the first spare process."""
        self._process = await _start()

    async def take(self) -> Process:
        """Return a process that reads its settings from its first line of input."""
        await self._stop()
        process, self._process = self._process, None
        if self._kept:
            self._timer = asyncio.create_task(self._keep())
        if process is None or process.returncode is not None:
            return await _start()
        return process

    async def close(self) -> None:
        self._kept = False
        await self._stop()
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()

    async def _keep(self) -> None:
        await asyncio.sleep(SOON if self._soon else LATER)
        self._process = await _start()

    async def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            with suppress(asyncio.CancelledError):
                await self._timer


async def _start() -> Process:
    # The process has a session of its own, because Ctrl-C in the terminal is for the front, which
    # then drains.
    return await asyncio.create_subprocess_exec(
        *COMMAND, stdin=PIPE, stdout=PIPE, limit=MAX_LINE, start_new_session=True
    )
