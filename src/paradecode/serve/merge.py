"""Merge several streams of events into one, in the order of arrival."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

from paradecode.serve.wire import OutputEvent
from paradecode.serve.workers import Events

AHEAD = 256
"""The most events that are read ahead of the reader."""


async def merged(
    streams: Sequence[Events], width: int
) -> AsyncGenerator[tuple[int, OutputEvent], None]:
    """Yield each event with the index of its stream, until all streams have ended.

    Closing the generator closes the streams.

    Args:
        width: number of streams that are read at the same time. The other streams begin later, in
            order.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as events:
            async for event in events:
                yield 0, event
        return
    queue: asyncio.Queue[tuple[int, Any]] = asyncio.Queue(AHEAD)
    entries = enumerate(streams)  # Shared: each task takes the next one.
    tasks = [asyncio.ensure_future(_pump(entries, queue)) for _ in streams[:width]]
    try:
        left = len(streams)
        while left:
            number, event = await queue.get()
            if isinstance(event, BaseException):
                raise event
            if event is None:
                left -= 1
            else:
                yield number, event
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(
    entries: Iterator[tuple[int, Events]], queue: asyncio.Queue[tuple[int, Any]]
) -> None:
    """Put the events of one stream after another into the queue.

    After each stream follows None, or the exception that the stream raised.
    """
    for number, stream in entries:
        end: BaseException | None = None
        try:
            async with aclosing(stream) as events:
                async for event in events:
                    await queue.put((number, event))
        except Exception as error:
            end = error
        await queue.put((number, end))
