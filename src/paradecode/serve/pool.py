"""Run the worker processes: start them, choose one for each request, cancel and drain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from paradecode.backends.native.machine import default_threads
from paradecode.core.checks import attributes, checked, whole
from paradecode.core.errors import InvalidInput
from paradecode.serve import wire
from paradecode.serve.buffer import Bounds
from paradecode.serve.call import Lost, WorkerCall
from paradecode.serve.carried import FRUITLESS, Carried
from paradecode.serve.failures import busy, stopping
from paradecode.serve.replica import Replica
from paradecode.serve.spare import Spare
from paradecode.serve.worker.settings import WorkerSettings
from paradecode.serve.workers import COME_BACK, Events, Observer, RequestFailed, Workers

MAX_LIVE = 8192
"""The most requests, over all models, that the front process holds. Further ones get a 429."""

RESTART_PATIENCE = 15.0
"""Seconds that a request waits if all workers of its model are restarting."""

HANG_SECONDS = 120.0
"""Seconds of silence after which a worker that has work is killed and restarted."""

LOAD_SECONDS = 600.0
"""Seconds after which a worker that has not loaded its model is killed."""

ANSWER_SECONDS = 1.0
"""Seconds after which a worker that does not answer is left out of the statistics."""


@dataclass(frozen=True)
class Served:
    """One model of the server: its public name, how to load it, and the number of its workers."""

    name: str
    worker: WorkerSettings
    replicas: int = checked(whole(1, 4096), 1)

    def __post_init__(self) -> None:
        attributes(self)


def share_cores(models: Sequence[Served]) -> list[Served]:
    """Divide the cores among the workers, if no number of threads is set.

    Otherwise each worker would use all cores, and its forwards would wait for those of other
    workers.
    """
    workers = sum(model.replicas for model in models)
    if workers == 1:
        return list(models)
    share = default_threads() // workers

    def threads(worker: WorkerSettings) -> dict[str, int]:
        beside = worker.draft_threads if worker.draft_model is not None else None
        return {"threads": max(1, share - (beside or 0))}

    return [
        replace(model, worker=model.worker.model_copy(update=threads(model.worker)))
        if model.worker.threads is None and model.worker.device == "cpu"
        else model
        for model in models
    ]


class Pool(Workers):
    """The worker processes of one or more models. The pool runs on one event loop.

    Args:
        models: at least one model. Their names must differ.
        bounds: limits on how far a reader of events may fall behind. Beyond them its request is
            cancelled (503).
        hang_seconds: the most seconds for which a worker that has work may be silent.
        load_seconds: seconds in which a worker must load its model.

    Raises:
        InvalidInput: if there is no model, or if two have the same name.
    """

    def __init__(
        self,
        models: Sequence[Served],
        observe: Observer | None = None,
        bounds: Bounds | None = None,
        hang_seconds: float = HANG_SECONDS,
        load_seconds: float = LOAD_SECONDS,
    ) -> None:
        super().__init__(observe)
        names = [model.name for model in models]
        if not names or len(set(names)) < len(names):
            raise InvalidInput("models", names, "give at least one, each with a name of its own")
        self._bounds = bounds
        self._hang_seconds, self._load_seconds = hang_seconds, load_seconds
        self._models = {model.name: model for model in share_cores(models)}
        self._replicas: dict[str, list[Replica]] = {}
        self._live: set[str] = set()
        self._turns = {model.name: asyncio.Lock() for model in models}
        """Model name -> lock. Requests that may have killed workers run one at a time under it."""
        self._changes = asyncio.Event()
        self._spare = Spare(any(model.replicas == 1 for model in models))

    async def start(self) -> None:
        """Start all workers, and return when all of them are ready.

        Raises:
            InvalidInput: if a model cannot be loaded with its settings, or not in time. All workers
                are closed first.
        """
        for name, model in self._models.items():
            self._replicas[name] = [
                Replica(
                    name, model.worker, partial(self._observe, name), self._changes.set,
                    self._hang_seconds, self._load_seconds, self._spare,
                )
                for _ in range(model.replicas)
            ]  # fmt: skip
        starts = [asyncio.create_task(replica.start()) for replica in self._all()]
        try:
            await asyncio.gather(*starts)
        except BaseException:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            await self.close()
            raise

    @property
    def ready(self) -> Mapping[str, wire.Ready]:
        known = {name: [r.known for r in group] for name, group in self._replicas.items()}
        return {name: said[0] for name, said in known.items() if said and said[0] is not None}

    @property
    def healthy(self) -> bool:
        groups = self._replicas.values()
        return bool(groups) and all(any(replica.well for replica in group) for group in groups)

    @property
    def restarts(self) -> dict[str, int]:
        groups = self._replicas.items()
        return {name: sum(replica.restarts for replica in group) for name, group in groups}

    async def submit(self, model: str, request: wire.Generate) -> Events:
        if model not in self._replicas:  # Anybody may invent names, so no metric.
            yield self._unknown(request.id, model)
            return
        refused = self._refusal(model, request)
        if refused is not None:
            yield self._failed(model, refused)
            return
        self._live.add(request.id)
        call, turn = None, self._turns[model]
        carried, holds = Carried(request), False
        try:
            while True:
                replica = await self._pick(model, request.id, carried)
                call = WorkerCall(carried.message(), self._bounds, carried.accepted, carried.done)
                await _send(replica, call)
                async for event in call.events():
                    seen = carried.take(event)
                    if holds and not carried.fruitless:
                        turn.release()
                        holds = False
                    if seen is not None:
                        yield seen
                if not call.lost:
                    return
                if carried.fruitless >= (1 if call.hung else FRUITLESS):
                    raise _died(request.id, "hung" if call.hung else "died")
                # What may be why a worker hung, or two died, has the next one at most alone.
                if (call.hung or carried.fruitless > 1) and not holds:
                    holds = await turn.acquire()
        except RequestFailed as error:
            yield self._failed(model, error.failure)
        finally:
            if holds:
                turn.release()
            self._live.discard(request.id)
            if call is not None:
                call.unwanted = True
                replica.cancel(call)

    async def stats(self) -> dict[str, list[wire.WorkerStats | None]]:
        found = iter(await asyncio.gather(*map(self._stats, self._all())))
        return {name: [next(found) for _ in group] for name, group in self._replicas.items()}

    async def _stats(self, replica: Replica) -> wire.WorkerStats | None:
        answer = await _told(replica, wire.AskStats(id=self._question()))
        return answer if isinstance(answer, wire.WorkerStats) else None

    async def blocks(self, model: str, since: Mapping[str, int]) -> dict[str, wire.CachedBlocks]:
        group = self._replicas.get(model, ())
        asked = {f"{at}.{replica.restarts}": replica for at, replica in enumerate(group)}
        questions = (
            _told(one, wire.AskBlocks(id=self._question(), since=since.get(name)))
            for name, one in asked.items()
        )
        answers = zip(asked, await asyncio.gather(*questions))
        return {name: found for name, found in answers if isinstance(found, wire.CachedBlocks)}

    async def drain(self, timeout: float) -> bool:
        """Refuse new requests (503), and wait for the accepted ones.

        Return whether all ended in time.
        """
        self.draining = True
        self._changes.set()
        await asyncio.gather(*(replica.drain() for replica in self._all()))
        lives = [replica.life for replica in self._all() if replica.life is not None]
        if not lives:
            return True
        _, pending = await asyncio.wait(lives, timeout=timeout)
        return not pending

    def stop(self) -> None:
        """End every request with a failure (503), which its reader sees."""
        self.draining = True
        self._changes.set()
        for replica in self._all():
            replica.stop()

    async def close(self) -> None:
        """End every worker. Requests that still run fail with 503."""
        self.draining = True
        await asyncio.gather(*(replica.close() for replica in self._all()))
        await self._spare.close()

    def _all(self) -> list[Replica]:
        return [replica for group in self._replicas.values() for replica in group]

    def _unknown(self, id: str, model: str) -> wire.Failure:
        message = f"there is no model {model[:80]!r}; use one of {', '.join(self._replicas)}"
        return wire.Failure(id=id, status=404, param="model", message=message)

    def _refusal(self, model: str, request: wire.Generate) -> wire.Failure | None:
        id = request.id
        if self.draining:
            return stopping(id)
        if len(self._live) >= MAX_LIVE:
            return busy(id, "the server holds too many requests; try again later")
        if id in self._live or any(id in replica.calls for replica in self._replicas[model]):
            return wire.Failure(id=id, status=400, param="id", message="the id is in use")
        return None

    async def _pick(self, model: str, id: str, carried: Carried | None = None) -> Replica:
        """Choose the worker with the least unfinished work; wait a limited time for a starting one.

        Args:
            carried: the request. If a worker has begun it, only a worker with the same arithmetic
                can continue. The wait is then as long as loading may take, because the reader
                already has some of the answer.

        Raises:
            RequestFailed: if there is no worker for request ``id``.
        """
        begun = carried is not None and carried.accepted
        limit = time.monotonic() + (self._load_seconds if begun else RESTART_PATIENCE)
        while not self.draining:
            able = [
                one
                for one in self._replicas[model]
                if one.open and one.ready is not None
                and not (carried and carried.accepted and carried.bits != one.ready.bits)
            ]  # fmt: skip
            if able:
                chosen = min(able, key=lambda one: (not one.well, one.load, one.served))
                if carried is not None and chosen.ready is not None:
                    carried.bits = chosen.ready.bits
                return chosen
            left = limit - time.monotonic()
            if left <= 0:
                break
            self._changes.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changes.wait(), left)
        message = "no worker of this model is running; try again later"
        raise RequestFailed(wire.Failure(id=id, status=503, message=message, retry_after=COME_BACK))

    async def _ask(self, model: str, question: wire.Question) -> wire.Event:
        if model not in self._replicas:
            raise RequestFailed(self._unknown(question.id, model))
        return await _answer(await self._pick(model, question.id), question)


async def _send(replica: Replica, call: WorkerCall) -> None:
    """Send a call to a worker. Raise RequestFailed if the call is too large."""
    try:
        await replica.send(call)
    except InvalidInput as error:
        failure = wire.Failure(id=call.id, status=413, param=error.field, message=str(error))
        raise RequestFailed(failure) from None


async def _answer(replica: Replica, question: wire.Question) -> wire.Event:
    """Return a worker's answer to a question. Raise RequestFailed if the worker fails or dies."""
    call = WorkerCall(question)
    await _send(replica, call)
    answer = await call.buffer.get()
    if isinstance(answer, Lost):
        raise _died(question.id)
    if isinstance(answer, wire.Failure):
        raise RequestFailed(answer)
    return answer


async def _told(replica: Replica, question: wire.Question) -> wire.Event | None:
    """Return a worker's answer, or None if the worker does not run or does not answer soon."""
    if not replica.open:
        return None
    with suppress(asyncio.TimeoutError, RequestFailed):
        return await asyncio.wait_for(_answer(replica, question), ANSWER_SECONDS)
    return None


def _died(id: str, how: str = "died") -> RequestFailed:
    message = f"the worker that ran this request {how}"
    return RequestFailed(wire.Failure(id=id, status=500, message=message))
