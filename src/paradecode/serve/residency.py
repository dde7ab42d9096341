"""Load models at their first request, and unload idle ones, within one bound on memory."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any

from paradecode.core.checks import attributes, checked, maybe, number, whole
from paradecode.core.errors import InvalidInput, ParadecodeError
from paradecode.serve import wire
from paradecode.serve.failures import busy, stopping
from paradecode.serve.replica import Replica
from paradecode.serve.sizes import Signature, memory_of, signature
from paradecode.serve.worker.settings import WorkerSettings
from paradecode.serve.workers import COME_BACK, RequestFailed, Residence

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class OnDemand:
    """Says that models are loaded at their first request, and when they are unloaded.

    Attributes:
        memory_bytes: the most bytes of weights and K/V memory of all loaded models. Idle models are
            unloaded for another one, the one that was used least recently first. None: no bound.
        idle_seconds: seconds after its last request after which a model is unloaded. None: never.

    Raises:
        InvalidInput: if a value is out of range.
    """

    memory_bytes: int | None = None
    idle_seconds: float | None = None

    def __post_init__(self) -> None:
        bounds = {"memory_bytes": whole(1, 1 << 60), "idle_seconds": number(0, 1e9)}
        attributes(self, {name: maybe(check) for name, check in bounds.items()})


@dataclass(frozen=True)
class Served:
    """One model of the server: its public name, how to load it, and the number of its workers."""

    name: str
    worker: WorkerSettings
    replicas: int = checked(whole(1, 4096), 1)

    def __post_init__(self) -> None:
        attributes(self)


async def start_all(
    starts: Iterable[Coroutine[Any, Any, None]], close: Callable[[], Awaitable[None]]
) -> None:
    """Run coroutines side by side; if one fails, cancel the others, call ``close``, and raise."""
    tasks = [asyncio.create_task(start) for start in starts]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await close()
        raise


class LoadState(Enum):
    UNLOADED, LOADING, LOADED = "unloaded", "loading", "loaded"


class ReplicaGroup:
    """The workers of one model.

    Args:
        make: makes a worker, which is not started yet.

    Attributes:
        replicas: the workers, which are none if the model is unloaded.
        known: what a worker said when it was last ready.
        turn: requests that may have killed workers run one at a time under this lock.
        users: ids of the requests that may use the workers. While there are any, the model stays.
        waiting: id of a request that waits for the model -> its key, and the number of its outputs.
        size: bytes that the model takes when it is loaded; 0 if nothing bounds them.
        leaving: whether the model is unloaded after its users, so that new requests wait.
        loading: the task that waits for room and loads the model.
        loads, unloads: how many times the model was loaded and unloaded.
    """

    def __init__(
        self, served: Served, make: Callable[[Served, wire.Ready | None], Replica]
    ) -> None:
        self.served, self._make = served, make
        self.state = LoadState.UNLOADED
        self.replicas: list[Replica] = []
        self.known: wire.Ready | None = None
        self.turn = asyncio.Lock()
        self.users: set[str] = set()
        self.waiting: dict[str, tuple[str, int]] = {}
        self.size, self.files = 0, Signature()
        self.leaving = False
        self.loading: asyncio.Task[str | None] | None = None
        self.used = self.failed_until = -1.0
        self.failed = ""
        self.loads = self.unloads = self._restarts = 0

    @property
    def name(self) -> str:
        return self.served.name

    @property
    def restarts(self) -> int:
        return self._restarts + sum(replica.restarts for replica in self.replicas)

    @property
    def failing(self) -> str | None:
        """Why no worker of a loaded model could be started again, or None if one may run."""
        said = [replica.failed for replica in self.replicas]
        return said[0] if said and None not in said else None

    @property
    def admits(self) -> bool:
        """True if a request may use the workers now."""
        return self.state is LoadState.LOADED and not self.leaving

    async def start(self) -> None:
        """Start the workers. Raise InvalidInput if one cannot load the model; then none runs."""
        self.state = LoadState.LOADING
        self.replicas = [self._make(self.served, self.known) for _ in range(self.served.replicas)]
        try:
            await start_all((replica.start() for replica in self.replicas), self.close)
        except BaseException:
            self.state = LoadState.UNLOADED
            raise
        self.state, self.used = LoadState.LOADED, time.monotonic()
        self.loads += 1
        self.known = self.replicas[0].known

    async def unload(self) -> None:
        """End the workers. Nobody may use them."""
        self.leaving = True
        await self.close()
        self.known = self.replicas[0].known
        self._restarts, self.replicas = self.restarts, []
        self.state, self.leaving = LoadState.UNLOADED, False
        self.unloads += 1

    async def close(self) -> None:
        await asyncio.gather(*(replica.close() for replica in self.replicas))

    def hidden(self, message: str) -> str:
        """Return a worker's message with the model's name in place of paths of this machine."""
        worker = self.served.worker
        paths = (
            worker.model, worker.draft_model, worker.adapter, worker.profile, worker.chat_template,
        )  # fmt: skip
        for path in paths:
            if path is not None and os.sep in path:
                message = message.replace(path, self.name)
        return message


class Residency:
    """Decides which models are loaded.

    Models wait for room one after another, in the order of their first request. A model that must
    leave for another one gets no further requests, and is unloaded when it has answered those that
    it has. So each of several models that do not fit together has its turn.

    Args:
        groups: all models.
    """

    def __init__(self, groups: Mapping[str, ReplicaGroup], rules: OnDemand) -> None:
        self._groups, self._rules = groups, rules
        self._room, self._changes = asyncio.Lock(), asyncio.Event()
        self._stopped = False
        self._idle: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Find out how much memory each model needs, and watch for idle models.

        A model that cannot be opened is left out; its requests will get the reason.

        Raises:
            InvalidInput: if a model alone needs more than the bound.
        """
        for group in self._groups.values():
            try:
                await self._measure(group)
            except (ParadecodeError, OSError) as error:
                if isinstance(error, TooLarge):
                    raise
                _log.warning("%s cannot be loaded: %s", group.name, error)
        if self._rules.idle_seconds is not None:
            self._idle = asyncio.create_task(self._unload_idle(self._rules.idle_seconds))

    def stop(self) -> None:
        """Let nobody wait for a model any more. Requests that wait fail with 503."""
        self._stopped = True
        tasks = [self._idle, *(group.loading for group in self._groups.values())]
        for task in tasks:
            if task is not None:
                task.cancel()

    async def close(self) -> None:
        self.stop()
        tasks = [self._idle, *(group.loading for group in self._groups.values())]
        await asyncio.gather(*(t for t in tasks if t is not None), return_exceptions=True)

    async def enter(
        self, group: ReplicaGroup, id: str, key: str, outputs: int, seconds: float | None
    ) -> None:
        """Wait until the model is loaded, and count the request as a user until ``leave``.

        Args:
            key: key of the client; each has a queue of its own.
            outputs: number of outputs, or 0 for a question.
            seconds: the longest wait; None: as long as loading takes.

        Raises:
            RequestFailed: if too many wait already, or if the model was not loaded.
        """
        if self._stopped:
            raise RequestFailed(stopping(id))
        if group.admits and group.failing is None:
            group.users.add(id)
            return
        settings = group.served.worker
        room = settings.queue_requests + settings.engine_limits().batch
        waiting = sum(count for owner, count in group.waiting.values() if owner == key)
        if waiting + outputs > room:
            raise RequestFailed(busy(id, "too many requests wait for this model; try again later"))
        if time.monotonic() < group.failed_until:
            raise not_loaded(id, group.failed)
        group.waiting[id] = key, outputs
        if group.loading is None:
            group.loading = asyncio.create_task(self._load(group))
        task = group.loading
        await asyncio.wait({task}, timeout=seconds)
        if id in group.users:
            return
        if self._stopped or task.cancelled():
            raise RequestFailed(stopping(id))
        failed = task.result() if task.done() else None
        raise not_loaded(id, failed or f"this took longer than {seconds or 0:.3g} s")

    def leave(self, group: ReplicaGroup, id: str) -> None:
        """End what ``enter`` began, also if that was cancelled or failed."""
        group.waiting.pop(id, None)
        if id in group.users:
            group.users.discard(id)
            group.used = time.monotonic()
        self._changes.set()

    async def _load(self, group: ReplicaGroup) -> str | None:
        """Load a model for the requests that wait for it. Return why that failed, or None."""
        try:
            async with self._room:
                if group.failing is not None:
                    await group.unload()
                if not group.admits:  # Else the model that it had to leave for has given up.
                    await self._measure(group)
                    await self._make_room(group)
                    if not group.waiting:
                        return None
                    group.state = LoadState.LOADING  # From now on its memory counts.
            if not group.admits:
                await group.start()
            group.users.update(group.waiting)
            group.waiting.clear()
            return None
        except (ParadecodeError, OSError) as error:
            said = error.fix if isinstance(error, InvalidInput) else str(error)
            _log.warning("%s was not loaded: %s", group.name, said)
            group.failed, group.failed_until = group.hidden(said), time.monotonic() + COME_BACK
            return group.failed
        finally:
            if group.state is not LoadState.LOADED:
                group.state, group.replicas = LoadState.UNLOADED, []
            group.loading = None
            self._changes.set()

    async def _measure(self, group: ReplicaGroup) -> None:
        """Set the size of a model, if there is a bound and its files are new or have changed."""
        limit, worker = self._rules.memory_bytes, group.served.worker
        if limit is None:
            return
        files = signature(worker)
        if group.size and files == group.files:
            return
        group.size = 0
        size = group.served.replicas * await asyncio.to_thread(memory_of, worker)
        if size > limit:
            raise TooLarge(group.name, size, limit)
        group.size, group.files = size, files

    async def _make_room(self, group: ReplicaGroup) -> None:
        """Unload other models until this one fits. Return early if nobody waits for it any more."""
        limit = self._rules.memory_bytes
        try:
            while limit is not None and group.waiting:
                held = [one for one in self._groups.values() if one.state is not LoadState.UNLOADED]
                short = sum(one.size for one in held) + group.size - limit
                if short <= 0:
                    return
                held.sort(key=_first_to_leave)
                for one in held:
                    one.leaving = short > 0
                    short -= one.size
                if not await self._unload(held):
                    await self._wait()
        finally:
            self._stay()

    def _stay(self) -> None:
        for one in self._groups.values():
            one.leaving = False

    async def _unload_idle(self, seconds: float) -> None:
        while True:
            now = time.monotonic()
            idle = [one for one in self._groups.values() if one.admits and not one.users]
            if any(now - one.used >= seconds for one in idle):
                async with self._room:
                    for one in idle:
                        one.leaving = one.admits and now - one.used >= seconds
                    await self._unload(idle)
                    self._stay()
            else:
                await self._wait(min((one.used + seconds - now for one in idle), default=None))

    async def _unload(self, groups: list[ReplicaGroup]) -> bool:
        """Unload those that leave and have no users. Return whether there were any."""
        gone = [
            one for one in groups if one.leaving and one.state is LoadState.LOADED and not one.users
        ]
        await asyncio.gather(*(one.unload() for one in gone))
        return bool(gone)

    async def _wait(self, seconds: float | None = None) -> None:
        """Wait for a change, for at most ``seconds``."""
        self._changes.clear()
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._changes.wait(), seconds)


class TooLarge(InvalidInput):
    """A model that alone needs more memory than all models may have."""

    def __init__(self, name: str, size: int, limit: int) -> None:
        fix = (
            f"its weights and K/V memory take {size / 1e9:.3g} GB and --memory-limit is "
            f"{limit / 1e9:.3g} GB; raise it, lower --kv-tokens, or leave this model out"
        )
        super().__init__("model", name, fix)


def _first_to_leave(group: ReplicaGroup) -> tuple[bool, bool, float]:
    return not group.leaving, bool(group.users or group.waiting), group.used


def residence(group: ReplicaGroup) -> Residence:
    """Return what clients and metrics may know about where a model is."""
    held = group.size if group.replicas else 0
    return Residence(group.state.value, group.loads, group.unloads, held)


def not_loaded(id: str, reason: str) -> RequestFailed:
    """Return the failure of a request whose model could not be loaded."""
    message = f"the model is not loaded: {reason}"
    return RequestFailed(
        wire.Failure(id=id, status=503, param="model", message=message, retry_after=COME_BACK)
    )
