"""Measures what a neighbour notices: stream pauses, slow /health, the front's memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import httpx

from tools.peers.process import status_bytes
from tools.serving.server import Server

LOOK = 0.02
"""Seconds between two measurements of /health and of the front process's memory."""


@dataclass
class Noticed:
    """The observations of a neighbour.

    A stream's first event counts from its request on. A stream that ends is followed by another
    one.

    Attributes:
        pause: longest time between two events of the stream, in seconds.
        health: time of the slowest answer of /health, in seconds.
        front: the most bytes of the server's front process.
        events: number of events of the stream.
        broken: what went wrong; empty if nothing did.
    """

    pause: float = 0.0
    health: float = 0.0
    front: int = 0
    events: int = 0
    broken: str = ""


class Neighbour:
    """A client of one model, with a key of its own."""

    def __init__(self, server: Server, model: str, key: str) -> None:
        self._server, self._body = server, {
            "model": model, "prompt": "One, two, three,", "max_tokens": 240, "stream": True,
            "ignore_eos": True, "temperature": 0.8,
        }  # fmt: skip
        self._headers = {"authorization": f"Bearer {key}"}

    @contextmanager
    def watching(self) -> Iterator[Noticed]:
        """Watch the server until the end of the block, which begins when the stream runs."""
        noticed, over, begun = Noticed(), threading.Event(), threading.Event()
        threads = [
            threading.Thread(target=self._stream, args=(noticed, over, begun)),
            threading.Thread(target=self._look, args=(noticed, over)),
        ]
        for thread in threads:
            thread.start()
        begun.wait(60)
        try:
            yield noticed
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _stream(self, noticed: Noticed, over: threading.Event, begun: threading.Event) -> None:
        with httpx.Client(base_url=self._server.url, headers=self._headers, timeout=60) as client:
            while not over.is_set():
                last = time.perf_counter()
                try:
                    with client.stream("POST", "/v1/completions", json=self._body) as response:
                        for line in response.iter_lines():
                            if line.startswith("data: "):
                                now = time.perf_counter()
                                noticed.pause = max(noticed.pause, now - last)
                                noticed.events, last = noticed.events + 1, now
                                begun.set()
                                if over.is_set():
                                    break
                        if response.status_code != 200 or '"error"' in line:
                            noticed.broken = f"{response.status_code} {line[:200]}"
                except httpx.HTTPError as error:
                    noticed.broken = f"{type(error).__name__} {error}"
                if noticed.broken:
                    begun.set()
                    return

    def _look(self, noticed: Noticed, over: threading.Event) -> None:
        with httpx.Client(base_url=self._server.url, timeout=60) as client:
            while not over.is_set():
                began = time.perf_counter()
                with suppress(httpx.HTTPError):
                    if client.get("/health").status_code != 200:
                        noticed.broken = "the server is not healthy"
                noticed.health = max(noticed.health, time.perf_counter() - began)
                noticed.front = max(noticed.front, status_bytes(self._server.pid, "VmRSS"))
                over.wait(LOOK)
