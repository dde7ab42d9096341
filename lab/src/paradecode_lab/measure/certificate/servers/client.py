"""Talks to an OpenAI-compatible server over HTTP, with the standard library alone."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol
from urllib.parse import urlsplit

from paradecode.core.errors import InvalidInput

LARGEST = 1 << 24
"""The most bytes of an answer."""
SAID = 300


class Transport(Protocol):
    """What a certificate needs of a server; tests give one that answers in the same process."""

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return the JSON of an answer."""

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[tuple[float, Any]]:
        """Yield the events of a stream, each with the seconds since the request was sent."""

    def metrics(self) -> str:
        """Return the text of ``/metrics``; empty if there is none."""


class RemoteServer:
    """A server at a URL that ends with ``/v1``; each thread keeps a connection of its own.

    Raises:
        InvalidInput: on a call, if the server cannot be reached, refuses, or answers no JSON.
    """

    def __init__(self, url: str, key: str | None = None, timeout: float = 600.0) -> None:
        self.url, self._timeout, self._own = url, timeout, threading.local()
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._json(self._read(self._send("POST", f"{self._path}/{path}", body)))

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[tuple[float, Any]]:
        sent = time.perf_counter()
        response = self._send("POST", f"{self._path}/{path}", body)
        while line := self._guarded(partial(response.readline, LARGEST)):
            at, data = time.perf_counter() - sent, line.strip()
            if data == b"data: [DONE]":
                break
            if data.startswith(b"data:"):
                yield at, self._json(data[5:])
        self._read(response)

    def metrics(self) -> str:
        try:
            return self._read(self._send("GET", "/metrics")).decode("utf-8", "replace")
        except InvalidInput:
            return ""

    def first_model(self) -> str:
        """Return the first model that the server lists."""
        listed = self._json(self._read(self._send("GET", f"{self._path}/models")))
        try:
            return str(listed["data"][0]["id"])
        except (KeyError, IndexError, TypeError):
            fix = "it lists no model; name one with --model"
            raise InvalidInput("--endpoint", self.url, fix) from None

    @property
    def _path(self) -> str:
        return urlsplit(self.url).path.rstrip("/")

    def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> http.client.HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        for again in (True, False):
            kept = getattr(self._own, "connection", None)
            connection = self._own.connection = kept or self._connect()
            try:
                connection.request(method, path, data, self._headers)
                response = connection.getresponse()
                break
            except (OSError, http.client.HTTPException) as error:
                self._forget()
                if kept is None or not again:  # An idle connection may be closed at any time.
                    fix = f"start the server first ({error})"
                    raise InvalidInput("--endpoint", self.url, fix) from None
        if response.status != 200:
            said = " ".join(response.read(SAID).decode("utf-8", "replace").split())
            self._forget()
            fix = f"it answers {response.status} to {path}: {said}"
            raise InvalidInput("--endpoint", self.url, fix)
        return response

    def _connect(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        secure = parts.scheme == "https"
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        return kind(parts.hostname or "", parts.port, timeout=self._timeout)

    def _forget(self) -> None:
        self._own.connection.close()
        self._own.connection = None

    def _guarded(self, read: Callable[[], bytes]) -> bytes:
        try:
            return read()
        except (OSError, http.client.HTTPException) as error:
            self._forget()
            fix = f"its answer broke off ({error})"
            raise InvalidInput("--endpoint", self.url, fix) from None

    def _read(self, response: http.client.HTTPResponse) -> bytes:
        data = self._guarded(partial(response.read, LARGEST + 1))
        if len(data) > LARGEST:
            self._forget()
            raise InvalidInput("--endpoint", self.url, f"it answers more than {LARGEST} bytes")
        return data

    def _json(self, data: bytes) -> Any:
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise InvalidInput(
                "--endpoint", self.url, "it answers something else than JSON"
            ) from None
