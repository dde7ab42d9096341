"""Pools with real workers, and helpers that collect their events."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from paradecode.serve.buffer import Bounds
from paradecode.serve.pool import HANG_SECONDS, Pool, Served
from paradecode.serve.wire import Accepted, Done, Failure, Generate, OutputChunk
from paradecode.serve.worker.settings import WorkerSettings


@asynccontextmanager
async def opened(
    folder: str | None,
    count: int = 1,
    *,
    bounds: Bounds | None = None,
    hang_seconds: float = HANG_SECONDS,
    **settings: Any,
) -> AsyncIterator[Pool]:
    worker = WorkerSettings(model=folder, threads=1, **settings)
    pool = Pool([Served("m", worker, count)], SEEN.append_event, bounds, hang_seconds)
    SEEN.clear()
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()


class Seen(Counter[str]):
    """Counts what the observer was told: events by type, and failures by status."""

    def append_event(self, model: str, event: Accepted | Done | Failure) -> None:
        assert model == "m"
        kind = str(event.status) if isinstance(event, Failure) else type(event).__name__
        self[kind] += 1


SEEN = Seen()


async def all_of(pool: Pool, request: Generate) -> tuple[list[int], Any]:
    """Return the tokens of the first output, and the last event."""
    tokens, last = [], None
    async for event in pool.submit("m", request):
        if isinstance(event, OutputChunk) and event.index == 0:
            tokens += event.tokens
        assert not isinstance(last, Failure), "nothing follows a failure"
        last = event
    return tokens, last


async def events_of(stream: AsyncIterator[Any]) -> list[Any]:
    return [event async for event in stream]


async def last_of(stream: AsyncIterator[Any]) -> Any:
    return (await events_of(stream))[-1]


async def idle(pool: Pool) -> None:
    """Wait until the workers have no requests. They must not hold a page."""
    for _ in range(1200):
        stats = (await pool.stats())["m"]
        if all(s and s.running == s.waiting == s.held_pages == 0 for s in stats):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"still busy: {stats}")


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 300)

    asyncio.run(bounded())
