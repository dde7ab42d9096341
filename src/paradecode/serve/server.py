"""Start the workers and listen. On Ctrl-C or SIGTERM, finish the accepted requests and end."""

from __future__ import annotations

import asyncio
import math
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import uvicorn

from paradecode.core.errors import InvalidInput
from paradecode.serve.connections import limited
from paradecode.serve.door import TURN, Visitor
from paradecode.serve.lobby import Lobby
from paradecode.serve.memory import giving_back, small_objects_by_libc, spare_what_exists
from paradecode.serve.metrics import Metrics
from paradecode.serve.pool import Pool
from paradecode.serve.settings import ServerSettings
from paradecode.serve.strangers import Strangers

KEEP_ALIVE_SECONDS = 30
"""Seconds for which an idle connection is kept."""

BACKLOG = 2048
"""The most connections that the system holds until the server accepts them."""

DESCRIPTORS = 128
"""Number of file descriptors for files, workers, and connections that are being closed."""

LAST_WORDS = 2
"""Seconds in which a stopping server tells its open streams that they end."""


async def serve(settings: ServerSettings, announce: Callable[[str, Pool], None]) -> None:
    """Serve until a signal comes.

    The first SIGINT or SIGTERM stops listening, and waits up to ``drain_seconds`` for the accepted
    requests. A second SIGINT ends without waiting.

    Args:
        announce: called once, with the address, when the server takes requests.

    Raises:
        InvalidInput: if the address cannot be used, or if a model cannot be loaded.
    """
    listener = bind(settings)  # First, because loading takes long and this may fail.
    small_objects_by_libc()
    memory = asyncio.create_task(giving_back())
    try:
        metrics = Metrics([model.name for model in settings.models])
        pool = Pool(
            settings.models, metrics.observe,
            hang_seconds=settings.hang_seconds, load_seconds=settings.load_seconds,
            on_demand=settings.on_demand,
        )  # fmt: skip
        app = asyncio.create_task(asyncio.to_thread(configured, settings, pool, metrics))
        await pool.start()
        try:
            server = _Server(await app)
            server.announce = lambda: announce(address(listener), pool)
            server.late = lambda: asyncio.get_running_loop().call_later(
                settings.drain_seconds, pool.stop
            )
            # uvicorn handles the signals itself. When it has ended, it raises them again for these
            # handlers.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, lambda *_: None)
            await server.serve(sockets=[listener])
        finally:
            await pool.close()
    finally:
        memory.cancel()
        listener.close()


def configured(settings: ServerSettings, pool: Pool, metrics: Metrics) -> uvicorn.Config:
    """Return the configuration for uvicorn."""
    from paradecode.serve.app import create_app  # Slow, so import while workers load.

    return uvicorn.Config(
        create_app(settings, pool, metrics),
        http=limited(replace(settings, connections=room_for(settings.connections))),
        ws="none",
        lifespan="off",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        backlog=TURN,  # asyncio accepts this many in one turn.
        timeout_graceful_shutdown=math.ceil(settings.drain_seconds) + LAST_WORDS,
    )


def room_for(connections: int) -> int:
    """Return how many connections this process may have, at most ``connections``.

    Each connection takes a file descriptor. If none are left, the system accepts no connection, and
    the server does not learn that somebody waits, so it cannot close an idle one.
    """
    if sys.platform == "win32":
        return connections
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + DESCRIPTORS
    if soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(connections, max(soft - DESCRIPTORS, soft // 2, 1))


def address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def bind(settings: ServerSettings) -> socket.socket:
    """Return a socket that is bound to the address and does not listen yet."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # If the protocol is named, asyncio sends without delay. Otherwise a body waits 40 ms after its
    # head.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((settings.host, settings.port))
    except OSError as error:
        listener.close()
        where = f"{settings.host}:{settings.port}"
        raise InvalidInput(
            "address", where, f"choose another --host or --port ({error.strerror or error})"
        ) from None
    return listener


class LobbyServer(uvicorn.Server):
    """A server whose connections wait in a lobby until their first request begins."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        listeners = sockets or []
        # Windows' event loop cannot watch a socket that has no transport.
        lobby = sys.platform != "win32"
        await super().startup([] if lobby else listeners)
        for listener in listeners:
            listener.setblocking(False)
            listener.listen(BACKLOG)
            if lobby:
                self.servers.append(self._lobby(listener))  # type: ignore[arg-type]

    def _lobby(self, listener: socket.socket) -> Lobby:
        kind, app = cast(Any, self.config.http_protocol_class), cast(Any, self.config.app)

        def welcome(guest: Visitor, head: bytes, rest: bytes) -> Any:
            made = kind(
                config=self.config, server_state=self.server_state, app_state=self.lifespan.state
            )
            made.follow(guest, head, rest)
            return made

        state = app.state
        strangers = Strangers(state.settings, state.metrics, state.log)
        return Lobby(listener, kind.entrance, state.settings, strangers.refusal, welcome)


class _Server(LobbyServer):
    """A server that reports when it listens, and shortly before its time to stop is over."""

    announce: Callable[[], None]
    late: Callable[[], asyncio.TimerHandle]

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        spare_what_exists()
        self.announce()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        timer = self.late()
        await super().shutdown(sockets)
        timer.cancel()
        app: Any = self.config.app
        if app.state.log is not None:
            await asyncio.to_thread(app.state.log.close)
        if app.state.spans is not None:
            await asyncio.to_thread(app.state.spans.close)
