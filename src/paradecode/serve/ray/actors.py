"""The actors on a cluster: replicas with workers, and the front that gets requests from Ray."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from paradecode.serve.app import create_app
from paradecode.serve.lines import decode, encode
from paradecode.serve.memory import spare_what_exists
from paradecode.serve.metrics import Metrics
from paradecode.serve.pool import Pool
from paradecode.serve.ray.fleet import Fleet
from paradecode.serve.settings import ServerSettings
from paradecode.serve.wire import REQUESTS, Tokenize
from paradecode.serve.workers import RequestFailed

BEAT = 0.4
"""Seconds without an event after which a replica sends a sign of life."""


@serve.ingress()
class Front:
    """Checks requests and keys, keeps track of the replicas, and counts for ``/metrics``."""

    # Ray awaits a constructor that is a coroutine.
    async def __init__(  # type: ignore[misc]
        self, settings: ServerSettings, replicas: DeploymentHandle
    ) -> None:
        metrics = Metrics([model.name for model in settings.models])
        fleet = Fleet(replicas, metrics.observe)
        await fleet.start()
        self._app = create_app(settings, fleet, metrics)
        spare_what_exists()

    def __serve_build_asgi_app__(self) -> Any:
        return self._app


class RayReplica:
    """A replica with a worker of each model. It exchanges the wire's lines as bytes.

    Its worker processes end when the replica ends, for whatever reason.
    """

    # Ray awaits a constructor that is a coroutine.
    async def __init__(self, settings: ServerSettings) -> None:  # type: ignore[misc]
        models = [replace(model, replicas=1) for model in settings.models]
        self._pool = Pool(
            models, hang_seconds=settings.hang_seconds, load_seconds=settings.load_seconds
        )
        await self._pool.start()

    async def generate(
        self, model: str, line: bytes, *, key: str, avoid: Sequence[str] = (), bits: str = ""
    ) -> AsyncGenerator[bytes, None]:
        """Yield the names of this replica and of its arithmetic, and then a request's events.

        An empty line is a sign of life while there is no event.

        Args:
            key, avoid: arguments for the router, which are not used here.
            bits: name of the wanted arithmetic. If the replica's is another, no event follows.
        """
        own = self._pool.ready[model].bits if model in self._pool.ready else ""
        yield f"{serve.get_replica_context().replica_id.unique_id} {own or '-'}".encode()
        if bits not in ("", own or "-"):
            return
        async with aclosing(self._pool.submit(model, decode(line, REQUESTS))) as events:
            coming = asyncio.ensure_future(anext(events))
            try:
                while True:
                    if not (await asyncio.wait({coming}, timeout=BEAT))[0]:
                        yield b""
                        continue
                    try:
                        event = coming.result()
                    except StopAsyncIteration:
                        return
                    coming = asyncio.ensure_future(anext(events))
                    yield encode(event)
            finally:
                coming.cancel()
                with suppress(asyncio.CancelledError, StopAsyncIteration):
                    await coming

    async def ask(self, model: str, line: bytes) -> bytes:
        """Return the answer to a question about tokens, as a line."""
        question = decode(line, REQUESTS)
        try:
            if isinstance(question, Tokenize):
                return encode(await self._pool.tokenize(model, question.prompt))
            return encode(await self._pool.detokenize(model, question.tokens))
        except RequestFailed as error:
            return encode(error.failure)

    async def blocks(self, model: str, since: dict[str, int]) -> dict[str, bytes]:
        """Return :meth:`paradecode.serve.workers.Workers.blocks` of this replica, as lines.

        The name of each worker begins with the replica's name.
        """
        own = serve.get_replica_context().replica_id.unique_id + "."
        known = {name.removeprefix(own): at for name, at in since.items() if name.startswith(own)}
        found = await self._pool.blocks(model, known)
        return {own + name: encode(blocks) for name, blocks in found.items()}

    async def report(self) -> dict[str, Any]:
        """Return the replica's state: workers' messages by model, as lines, and its restarts."""
        stats = await self._pool.stats()
        return {
            "healthy": self._pool.healthy,
            "ready": {name: encode(said) for name, said in self._pool.ready.items()},
            "stats": {name: [encode(s) for s in found if s] for name, found in stats.items()},
            "restarts": self._pool.restarts,
        }
