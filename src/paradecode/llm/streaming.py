"""Yield an answer while it is decoded, for one thread or for asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from threading import RLock

from paradecode.completion import Chunk, chunk_of
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest


def stream(engine: Engine, turn: RLock, request: GenerationRequest) -> Generator[Chunk, None, None]:
    """Yield what each step decides of a request; ``turn`` is locked while the engine runs.

    The request is queued when the first chunk is requested. Closing the iterator cancels it.
    """
    decided = 0
    with turn:
        sequence = engine.add(request)
    try:
        while True:
            with turn:  # Others may have made steps of this one meanwhile.
                if not sequence.finished and len(sequence.trace) == decided:
                    engine.step()
                ended, news = sequence.finished, len(sequence.trace) > decided
                decided = len(sequence.trace)
                chunk = chunk_of(sequence)
            if ended:
                break
            if news:
                yield chunk
        if sequence.error is not None:
            raise sequence.error
        yield chunk
    finally:  # Of a forgotten stream, at any moment: a step may be going on, in any thread.
        engine.drop(sequence)
        if turn.acquire(blocking=False):
            try:
                engine.settle()
            finally:
                turn.release()


async def in_threads(chunks: Generator[Chunk, None, None]) -> AsyncGenerator[Chunk, None]:
    """Yield the items of ``chunks``, each computed in a thread.

    Closing this iterator waits for the item that is being computed.
    """
    forward: asyncio.Future[Chunk | None] | None = None
    try:
        while True:
            forward = asyncio.ensure_future(asyncio.to_thread(next, chunks, None))
            chunk = await asyncio.shield(forward)
            if chunk is None:
                return
            yield chunk
    finally:
        if forward is not None:
            await asyncio.wait([forward])
        chunks.close()
