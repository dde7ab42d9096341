"""All replicas, as the front sees them. `Fleet` is for a cluster what `Pool` is for one machine."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from ray.exceptions import RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle

from paradecode.serve import wire
from paradecode.serve.carried import FRUITLESS, Carried
from paradecode.serve.failures import busy
from paradecode.serve.lines import decode, encode
from paradecode.serve.ray.prefix import prefix_key
from paradecode.serve.workers import COME_BACK, Events, Observer, RequestFailed, Workers

PERIOD = 2.0
"""Seconds between two queries of the replicas' state."""

ANSWER_SECONDS = 2.0
"""Seconds for which the replicas have time to answer. After them, their last answers are used."""

LATELY = 15.0
"""Age in seconds above which an answer no longer shows that the server is healthy."""

PATIENCE = 60.0
"""Seconds that a request waits for a replica, if all replicas are starting or full."""

SILENCE = 1.5
"""Seconds without a sign of life after which a replica with a request counts as dead.

Ray notices the death of a machine only after half a minute.
"""

PAUSE = 0.25
"""Seconds after which a begun request that all replicas refused is sent again."""

_log = logging.getLogger(__name__)


class _Gone(Exception):
    """The replica that has the request does not answer any more."""


class _Unreached(Exception):
    """The request reached no replica."""


class _OtherBits(Exception):
    """The replica's arithmetic differs from that of the replica that began the request."""


class Fleet(Workers):
    """Sends requests to replicas. If one dies, another continues after what the reader has.

    ``draining`` never becomes true, because Ray drains replicas itself.

    Args:
        replicas: the deployment of :class:`paradecode.serve.ray.actors.RayReplica`.
        observe: called with the fate of each request, unless its client has left.
    """

    def __init__(self, replicas: DeploymentHandle, observe: Observer) -> None:
        super().__init__(observe)
        self._replicas = replicas
        self._ready: Mapping[str, wire.Ready] = {}
        self._restarts: Mapping[str, int] = {}
        self._heard = -math.inf
        self._stats: dict[str, list[wire.WorkerStats | None]] = {}
        self._watch: asyncio.Task[None] | None = None
        self._silent: dict[str, float] = {}
        """Name of a replica -> the time at which it was found silent."""

    @property
    def ready(self) -> Mapping[str, wire.Ready]:
        return self._ready

    @property
    def restarts(self) -> Mapping[str, int]:
        """Model -> how many times its workers were restarted, over all replicas."""
        return self._restarts

    @property
    def healthy(self) -> bool:
        """True if a replica with all its workers has answered within :data:`LATELY` seconds."""
        return time.monotonic() - self._heard < LATELY

    async def start(self) -> None:
        """Wait for the first replica, and then watch all replicas."""
        while not self.healthy:
            await self._look()
            await asyncio.sleep(0 if self.healthy else PERIOD / 10)
        self._watch = asyncio.create_task(self._keep_looking())

    async def stats(self) -> Mapping[str, Sequence[wire.WorkerStats | None]]:
        """Return model -> statistics of the workers of all replicas that answer in time."""
        await self._look()
        return self._stats

    async def submit(self, model: str, request: wire.Generate) -> Events:
        carried, key = Carried(request), prefix_key(model, request)
        avoid: set[str] = set()
        limit = time.monotonic() + PATIENCE
        while True:
            try:
                async with aclosing(self._events(model, carried, key, avoid)) as events:
                    async for event in events:
                        seen = carried.take(event)
                        if isinstance(seen, (wire.Accepted, wire.Done, wire.Failure)):
                            self._observe(model, seen)
                        if seen is not None:
                            yield seen
                        limit = time.monotonic() + PATIENCE
                return
            except (RayError, _Gone) as error:
                again, failed = carried.fruitless < FRUITLESS, error
            except (_OtherBits, _Unreached, RayServeException, asyncio.TimeoutError) as error:
                waits = carried.accepted or isinstance(error, _Unreached)
                again, failed = waits and time.monotonic() < limit, error
                carried.fruitless = 0
            if not again:
                yield self._failed(model, _failure(request.id, failed))
                return
            await asyncio.sleep(PAUSE if carried.fruitless == 0 else 0)

    async def _events(self, model: str, carried: Carried, key: str, avoid: set[str]) -> Events:
        """Yield a request's events from one replica.

        If the reader stops early, it is cancelled there.

        Args:
            avoid: names of replicas that cannot serve the request; a replica that fails is added.
        """
        now = time.monotonic()
        self._silent = {name: at for name, at in self._silent.items() if now - at < PATIENCE}
        stream = self._replicas.options(stream=True).generate.remote(
            model, encode(carried.message()), key=key, avoid=[*avoid, *self._silent],
            bits=carried.bits * carried.accepted,
        )  # fmt: skip
        replica = ""
        try:
            replica, bits = (await asyncio.wait_for(anext(stream), PATIENCE)).decode().split()
            if carried.accepted and bits != carried.bits:
                raise _OtherBits
            carried.bits = bits
            while True:
                line = await asyncio.wait_for(anext(stream), SILENCE)
                if line:
                    yield decode(line, wire.EVENTS)
        except RayError as error:
            if not replica:  # The request reached no replica.
                raise _Unreached(str(error)) from None
            raise
        except StopAsyncIteration:
            if not carried.over:
                raise _Gone from None
        except asyncio.TimeoutError:
            if not replica:
                raise
            self._silent[replica] = time.monotonic()
            raise _Gone from None
        finally:
            avoid.add(replica)
            stream.cancel()

    async def blocks(self, model: str, since: Mapping[str, int]) -> Mapping[str, wire.CachedBlocks]:
        answers = await self._all("blocks", model, dict(since)) or []
        return {name: decode(line, wire.EVENTS) for one in answers for name, line in one.items()}

    async def _ask(self, model: str, question: wire.Question) -> wire.Event:
        try:
            line = await self._replicas.ask.remote(model, encode(question))
        except (RayError, RayServeException) as error:
            raise RequestFailed(_failure(question.id, error)) from None
        answer: wire.Event = decode(line, wire.EVENTS)
        if isinstance(answer, wire.Failure):
            raise RequestFailed(answer)
        return answer

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(PERIOD)
            await self._look()

    async def _look(self) -> None:
        """Ask every replica for its state. A replica that dies meanwhile is left out."""
        reports = await self._all("report")
        if reports is None:
            return
        well = any(report["healthy"] for report in reports)
        self._heard = time.monotonic() if well else -math.inf
        stats: dict[str, list[wire.WorkerStats | None]] = {}
        restarts = Counter[str]()
        for report in reports:
            self._ready = {
                name: decode(line, wire.EVENTS) for name, line in report["ready"].items()
            }
            for name, lines in report["stats"].items():
                stats.setdefault(name, []).extend(decode(line, wire.EVENTS) for line in lines)
            restarts.update(report["restarts"])
        self._stats, self._restarts = stats, restarts

    async def _all(self, method: str, *given: Any) -> list[Any] | None:
        """Return the answers of the living replicas, or None if one takes too long."""
        try:
            answers = await self._replicas.broadcast(method, *given).results_async(
                timeout_s=ANSWER_SECONDS, return_exceptions=True
            )
        except TimeoutError:
            return None
        except DeploymentUnavailableError:
            return []
        return [answer for answer in answers if isinstance(answer, dict)]


def _failure(id: str, error: Exception) -> wire.Failure:
    """Return the failure for the client if Ray gives no answer."""
    if isinstance(error, BackPressureError):
        return busy(id, "all replicas have all the requests they may have; try again later")
    if isinstance(error, (RayError, _Gone)):
        message = "the replica that ran this request died"
        return wire.Failure(id=id, status=500, message=message)
    _log.warning("Ray did not answer: %s", type(error).__name__)
    message = "no replica took the request; try again later"
    return wire.Failure(id=id, status=503, message=message, retry_after=COME_BACK)
