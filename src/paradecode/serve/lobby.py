"""Connections before their first request: accepted, read and refused at the least cost.

A connection has no transport and no parser here, so two thousand of them cost little more than
their system calls.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

from paradecode.serve import heads
from paradecode.serve.door import TURN, Door, Visitor
from paradecode.serve.errors import ApiError
from paradecode.serve.settings import ServerSettings

LINGER = 1.0
"""Seconds for which an answer can be read that was sent before its request had arrived whole."""

RETRY = 1.0
"""Seconds until the server accepts again after the system had no descriptor or memory left."""

YOUNG = 0.1
"""Seconds that a silent connection has for its request before it gives its place to a new one.

New connections wait meanwhile, so a higher number delays whoever comes behind a crowd.
"""

PIECE = 1 << 14
FULL = "the server has all the connections it may have"


class Lobby:
    """Accepts connections, and holds each until the head of its first request is whole.

    Uvicorn treats it as one of its servers.

    Args:
        listener: a socket that listens, and does not block.
        refusal: gives the answer to a head that needs no application; None if it needs one.
        welcome: makes the protocol of a connection whose request begins, out of what is known of
            the client, the head, and the bytes that arrived after it.
    """

    def __init__(
        self, listener: socket.socket, door: Door, settings: ServerSettings,
        refusal: Callable[[bytes], bytes | None],
        welcome: Callable[[Visitor, bytes, bytes], Any],
    ) -> None:  # fmt: skip
        self._listener, self.door, self.settings = listener, door, settings
        self.refusal, self._welcome = refusal, welcome
        self.loop = asyncio.get_running_loop()
        self.guests, self._welcomed = set[Guest](), set[asyncio.Task[Any]]()
        self._open = True
        self._start()

    def close(self) -> None:
        """Stop accepting, and close all connections whose request has not begun."""
        if self._open:
            self._open = False
            self.loop.remove_reader(self._listener)
            for guest in list(self.guests):
                guest.end()

    async def wait_closed(self) -> None:
        """Return at once, because nothing waits here when it is closed."""

    def _start(self) -> None:
        if self._open:
            self.loop.add_reader(self._listener, self._accept)

    def _pause(self, seconds: float) -> None:
        self.loop.remove_reader(self._listener)
        self.loop.call_later(seconds, self._start)

    def _accept(self) -> None:
        for _ in range(TURN):
            if self._welcomed and self.door.full:
                return  # Those who are on their way in may soon wait for their clients.
            idle = self.door.longest_idle()
            if isinstance(idle, Guest) and self.loop.time() - idle.since < YOUNG:
                self._pause(YOUNG / 4)
                return
            try:
                theirs, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError:  # No descriptor is left, so the listener would be ready all the time.
                self._pause(RETRY)
                return
            theirs.setblocking(False)
            guest = Guest(self, theirs)
            self.guests.add(guest)
            if self.door.enter(guest):
                guest.hear()
            else:
                guest.refuse(heads.answer(ApiError(503, FULL)))

    def connect(self, guest: Guest, theirs: socket.socket, head: bytes, rest: bytes) -> None:
        """Give a guest a transport, and the protocol that serves it."""
        task = self.loop.create_task(self._connect(theirs, self._welcome(guest, head, rest)))
        self._welcomed.add(task)
        task.add_done_callback(self._welcomed.discard)

    async def _connect(self, theirs: socket.socket, protocol: Any) -> None:
        try:
            await self.loop.connect_accepted_socket(lambda: protocol, theirs)
        except OSError:  # Some systems set no option of a connection that the client has ended.
            self.door.leave(protocol)
            theirs.close()


class Guest:
    """A connection in the lobby."""

    __slots__ = ("_arrived", "_head", "_hears", "_lobby", "_refused", "_socket", "_timer", "owner",
                 "rank", "since")  # fmt: skip

    def __init__(self, lobby: Lobby, ours: socket.socket) -> None:
        self.rank, self.owner = 0, b""
        self._lobby, self._socket, self.since = lobby, ours, lobby.loop.time()
        self._arrived, self._head = bytearray(), b""
        self._hears = self._refused = False
        self._timer: asyncio.TimerHandle | None = None

    def hear(self) -> None:
        """Take what has arrived, and judge the head when it is whole."""
        try:
            piece = self._socket.recv(PIECE)
        except (BlockingIOError, InterruptedError):
            self._wait(self._lobby.settings.header_seconds)
            return
        except OSError:
            piece = b""
        if not piece:
            self.end()
        elif not self._refused:
            self._arrived += piece
            self._judge()

    def read(self) -> None:
        """Begin the request that has arrived."""
        if self in self._lobby.guests:
            self._forget()
            self._lobby.connect(self, self._socket, self._head, bytes(self._arrived))

    def refuse(self, answer: bytes, whole: bool = False) -> None:
        """Send an answer, and close the connection.

        If the request is not ``whole``, the client first has time to read the answer, because
        what it still sends would otherwise delete the answer.
        """
        try:
            self._socket.send(answer)
            if not whole:
                self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            whole = True
        if whole:
            self.end()
            return
        self._refused = True
        self._lobby.door.wait(self)
        self._cancel()
        self._wait(LINGER)

    def end(self) -> None:
        self._lobby.door.leave(self)
        self.leave()

    def leave(self) -> None:
        self._forget()
        self._socket.close()

    def _judge(self) -> None:
        lobby = self._lobby
        try:
            head = heads.split(self._arrived, lobby.settings.header_bytes)
        except ApiError as error:
            self.refuse(heads.answer(error))
            return
        if head is None:
            self._wait(lobby.settings.header_seconds)
            return
        lobby.door.work(self)
        lobby.door.recognise(self, head)
        refusal = None if self.owner else lobby.refusal(head)
        if refusal is not None:
            self.refuse(refusal, not (self._arrived or heads.announces_body(head)))
            return
        self._head = head
        self._deafen()
        if lobby.door.turn(self):
            self.read()

    def _wait(self, seconds: float) -> None:
        """Wait for more bytes, at most until this time after the wait began."""
        loop = self._lobby.loop
        if self._timer is None:
            self._timer = loop.call_later(seconds, self.end)
        if not self._hears:
            self._hears = True
            # A number, because the selector would write a text about a socket that it looks up.
            loop.add_reader(self._socket.fileno(), self.hear)

    def _deafen(self) -> None:
        if self._hears:
            self._hears = False
            self._lobby.loop.remove_reader(self._socket.fileno())

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _forget(self) -> None:
        self._lobby.guests.discard(self)
        self._deafen()
        self._cancel()
