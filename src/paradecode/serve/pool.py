"""Run the worker processes: start them, choose one for each request, cancel and drain."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from paradecode.backends.native.machine import default_threads
from paradecode.core.errors import InvalidInput
from paradecode.serve import wire
from paradecode.serve.buffer import Bounds
from paradecode.serve.call import Lost, WorkerCall, outputs_of
from paradecode.serve.carried import FRUITLESS, Carried
from paradecode.serve.failures import busy, stopping
from paradecode.serve.replica import Replica
from paradecode.serve.residency import (
    LoadState,
    OnDemand,
    ReplicaGroup,
    Residency,
    Served,
    not_loaded,
    residence,
    start_all,
)
from paradecode.serve.spare import Spare
from paradecode.serve.worker.settings import WorkerSettings
from paradecode.serve.workers import (
    COME_BACK,
    Events,
    Observer,
    RequestFailed,
    Residence,
    Workers,
)

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
        on_demand: when to load and unload models; None means that all are always loaded.

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
        on_demand: OnDemand | None = None,
    ) -> None:
        super().__init__(observe)
        names = [model.name for model in models]
        if not names or len(set(names)) < len(names):
            raise InvalidInput("models", names, "give at least one, each with a name of its own")
        self._bounds = bounds
        self._hang_seconds, self._load_seconds = hang_seconds, load_seconds
        if on_demand is None:
            models = share_cores(models)
        self._groups = {model.name: ReplicaGroup(model, self._replica) for model in models}
        self._live: set[str] = set()
        self._changes = asyncio.Event()
        alone = any(model.replicas == 1 for model in models)
        self._spare = Spare(alone or on_demand is not None, soon=on_demand is not None)
        self._residency = None if on_demand is None else Residency(self._groups, on_demand)

    def _replica(self, model: Served, known: wire.Ready | None) -> Replica:
        warm = self._residency is None  # Otherwise a request waits for the model.
        return Replica(
            model.name, model.worker.model_copy(update={"warm": warm}),
            partial(self._observe, model.name), self._changes.set,
            self._hang_seconds, self._load_seconds, self._spare, known,
        )  # fmt: skip

    async def start(self) -> None:
        """Start all workers, and return when all of them are ready.

        If models are loaded on demand, only a spare process is started.

        Raises:
            InvalidInput: if a model cannot be loaded with its settings, or not in time, or if it
                alone needs more memory than all models may have. All workers are closed first.
        """
        if self._residency is None:
            starts = [group.start() for group in self._groups.values()]
        else:
            starts = [self._residency.start(), self._spare.prepare()]
        await start_all(starts, self.close)

    @property
    def _replicas(self) -> dict[str, list[Replica]]:
        """Name of each model that has workers -> its workers."""
        return {name: group.replicas for name, group in self._groups.items() if group.replicas}

    @property
    def ready(self) -> Mapping[str, wire.Ready]:
        known = {
            name: group.replicas[0].known if group.replicas else group.known
            for name, group in self._groups.items()
        }
        return {name: said for name, said in known.items() if said is not None}

    @property
    def healthy(self) -> bool:
        if self._residency is None and not self._replicas:
            return False
        groups = [group for group in self._groups.values() if group.replicas]
        return all(
            group.state is LoadState.LOADING or any(r.well for r in group.replicas)
            for group in groups
        )

    @property
    def restarts(self) -> dict[str, int]:
        return {name: group.restarts for name, group in self._groups.items()}

    @property
    def residence(self) -> dict[str, Residence]:
        return {name: residence(group) for name, group in self._groups.items()}

    async def introduce(self, model: str, id: str, key: str, seconds: float) -> None:
        group = self._groups[model]
        if self._residency is not None and model not in self.ready:
            try:
                await self._residency.enter(group, id, key, 1, seconds)
            finally:
                self._residency.leave(group, id)

    async def submit(self, model: str, request: wire.Generate) -> Events:
        group = self._groups.get(model)
        if group is None:  # Anybody may invent names, so no metric.
            yield self._unknown(request.id, model)
            return
        refused = self._refusal(group, request)
        if refused is not None:
            yield self._failed(model, refused)
            return
        self._live.add(request.id)
        call, turn = None, group.turn
        carried, holds = Carried(request), False
        try:
            await self._enter(group, request)
            while True:
                replica = await self._pick(group, request.id, carried)
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
            self._leave(group, request.id)

    async def stats(self) -> dict[str, list[wire.WorkerStats | None]]:
        found = iter(await asyncio.gather(*map(self._stats, self._all())))
        return {name: [next(found) for _ in group] for name, group in self._replicas.items()}

    async def _stats(self, replica: Replica) -> wire.WorkerStats | None:
        answer = await _told(replica, wire.AskStats(id=self._question()))
        return answer if isinstance(answer, wire.WorkerStats) else None

    async def blocks(self, model: str, since: Mapping[str, int]) -> dict[str, wire.CachedBlocks]:
        group = self._groups[model]
        asked = {f"{at}.{group.loads}.{one.restarts}": one for at, one in enumerate(group.replicas)}
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
        self._end_waits()
        await asyncio.gather(*(replica.drain() for replica in self._all()))
        lives = [replica.life for replica in self._all() if replica.life is not None]
        if not lives:
            return True
        _, pending = await asyncio.wait(lives, timeout=timeout)
        return not pending

    def stop(self) -> None:
        """End every request with a failure (503), which its reader sees."""
        self._end_waits()
        for replica in self._all():
            replica.stop()

    async def close(self) -> None:
        """End every worker. Requests that still run fail with 503."""
        self._end_waits()
        if self._residency is not None:
            await self._residency.close()
        await asyncio.gather(*(replica.close() for replica in self._all()))
        await self._spare.close()

    def _end_waits(self) -> None:
        self.draining = True
        self._changes.set()
        if self._residency is not None:
            self._residency.stop()

    def _all(self) -> list[Replica]:
        return [replica for group in self._replicas.values() for replica in group]

    def _unknown(self, id: str, model: str) -> wire.Failure:
        message = f"there is no model {model[:80]!r}; use one of {', '.join(self._groups)}"
        return wire.Failure(id=id, status=404, param="model", message=message)

    def _refusal(self, group: ReplicaGroup, request: wire.Generate) -> wire.Failure | None:
        id = request.id
        if self.draining:
            return stopping(id)
        if len(self._live) >= MAX_LIVE:
            return busy(id, "the server holds too many requests; try again later")
        if id in self._live or any(id in replica.calls for replica in group.replicas):
            return wire.Failure(id=id, status=400, param="id", message="the id is in use")
        return None

    async def _enter(self, group: ReplicaGroup, request: wire.Generate | wire.Question) -> None:
        """Wait until the request's model is loaded. Raise RequestFailed if it cannot be."""
        if self._residency is None:
            return
        key, outputs, deadline = "", 0, None
        if isinstance(request, wire.Generate):
            key, outputs, deadline = request.key, outputs_of(request), request.deadline
        await self._residency.enter(group, request.id, key, outputs, deadline)

    def _leave(self, group: ReplicaGroup, id: str) -> None:
        if self._residency is not None:
            self._residency.leave(group, id)

    async def _pick(self, group: ReplicaGroup, id: str, carried: Carried | None = None) -> Replica:
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
                for one in group.replicas
                if one.open and one.ready is not None
                and not (carried and carried.accepted and carried.bits != one.ready.bits)
            ]  # fmt: skip
            if able:
                chosen = min(able, key=lambda one: (not one.well, one.load, one.served))
                if carried is not None and chosen.ready is not None:
                    carried.bits = chosen.ready.bits
                return chosen
            if self._residency is not None and (group.failing or not group.replicas):
                raise not_loaded(id, group.hidden(group.failing or "its worker ended"))
            left = limit - time.monotonic()
            if left <= 0:
                break
            self._changes.clear()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changes.wait(), left)
        message = "no worker of this model is running; try again later"
        raise RequestFailed(wire.Failure(id=id, status=503, message=message, retry_after=COME_BACK))

    async def _ask(self, model: str, question: wire.Question) -> wire.Event:
        group = self._groups.get(model)
        if group is None:
            raise RequestFailed(self._unknown(question.id, model))
        try:
            await self._enter(group, question)
            return await _answer(await self._pick(group, question.id), question)
        finally:
            self._leave(group, question.id)


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
