"""Who shows no valid key is refused before the application, with the application's own answer."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack
from typing import Any

import pytest
from http_server import FakePool, Running, raw, running, settings
from test_http_connections import LAST, held
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from paradecode.serve.security import Guard
from patience import until

KEY, ORIGIN = "key of  somebody", "https://a.example"
OPEN = LAST.replace(b"close", b"keep-alive")


def asks(line: str, *more: str) -> bytes:
    end = ("Host: localhost", "Connection: close", *more, "", "")
    return "\r\n".join((f"{line} HTTP/1.1", *end)).encode()


def parts(answer: bytes) -> tuple[bytes, dict[bytes, bytes], bytes]:
    """Return the status line, the body, and the headers but those of one request.

    The headers that a page's script may read are left out, too, because an error has its own.
    """
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    headers = {name.lower(): value for name, value in (line.split(b": ", 1) for line in lines)}
    assert len(headers.pop(b"x-request-id")) == 32
    for one in (b"date", b"access-control-expose-headers"):
        headers.pop(one, None)
    return first, headers, body


@pytest.mark.parametrize(
    "sent",
    [asks(f"GET {path}") for path in (
        "/v1/models", "/v1/models?a=/health", "/nothing", "/api/tags", "/%61pi/tags", "/health",
        "/health/", "/health/below", "/healthy", "/%68ealth", "/health/../v1/models", "//health",
        "/v1/health", "/metrics", "/page", "/page/x", "/?a=b", "http://localhost/v1/models",
        "http://localhost/health")]
    + [asks("HEAD /v1/models"), asks("HEAD /health"), asks("OPTIONS /v1/models"),
       asks("POST /v1/completions", "Content-Length: 0"),
       asks("POST /v1/completions", "Content-Length: 9", "Origin: " + ORIGIN),
       asks("GET /v1/models", "Origin: " + ORIGIN), asks("GET /v1/models", "Origin: http://b.c"),
       asks("OPTIONS /v1/models", "Origin: " + ORIGIN, "Access-Control-Request-Method: GET"),
       asks("GET /v1/models", "Authorization: Bearer key-of-nobody"),
       asks("GET /v1/models", "X-API-Key:" + KEY), asks("GET /v1/models", f"x-api-key: {KEY} "),
       asks("GET /v1/models", "X-API-Key: key-of-nobody", "authorization: bearer " + KEY),
       asks("GET /v1/models", "X-API-Key: " + KEY, "Authorization: Bearer key-of-nobody"),
       asks("GET /v1/models", "Authorization: x")],
    ids=lambda sent: sent.decode().replace("\r\n", " ")[:60],
)  # fmt: skip
def test_strangers_get_the_applications_answer(guarded: Running, sent: bytes) -> None:
    """A first request is answered as a later one of its connection, which the application sees."""
    first, later = raw(guarded, sent), raw(guarded, OPEN, sent)
    health, later = later[: later.index(b"}") + 1], later[later.index(b"}") + 1 :]
    assert health.startswith(b"HTTP/1.1 200")
    assert parts(first) == parts(later)


@pytest.fixture
def guarded() -> Any:
    chosen = settings(keys=(KEY,), public=("health",), origins=(ORIGIN,))
    with running(chosen, FakePool()) as server:
        yield server


def test_no_stranger_reaches_a_parser_or_the_application(monkeypatch: pytest.MonkeyPatch) -> None:
    """Refused, silent and slow connections get no protocol, because each would cost much."""
    seen = Counter[str]()

    def count(kind: type, name: str) -> None:
        plain = getattr(kind, name)

        def noted(self: Any, *given: Any, **more: Any) -> Any:
            seen[name] += 1
            return plain(self, *given, **more)

        monkeypatch.setattr(kind, name, noted)

    count(HttpToolsProtocol, "__init__")
    count(Guard, "__call__")
    with running(settings(keys=(KEY,)), FakePool()) as server, ExitStack() as open_ones:
        for sent in (b"", b"GET /v1/mod"):
            open_ones.enter_context(held(server, sent))
        for _ in range(20):
            answer = raw(server, asks("POST /v1/completions", "Content-Length: 9"))
            assert answer.startswith(b"HTTP/1.1 401")
            assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == (
                "invalid_api_key"
            )
        assert not seen
        page = server.client.get("/metrics").text
        assert 'http_responses_total{route="other",status="401"} 20' in page
        assert seen == {"__init__": 1, "__call__": 1}


def test_a_stranger_can_read_its_answer_behind_its_body(guarded: Running) -> None:
    """Bytes that arrive after the answer are thrown away, or it would delete the answer."""
    size = 8 << 20
    answer = raw(guarded, asks("POST /v1/completions", f"Content-Length: {size}"), b"x" * size)
    assert answer.startswith(b"HTTP/1.1 401")


def test_a_stopping_server_closes_the_lobby() -> None:
    with running(settings(keys=(KEY,)), FakePool()) as server:
        silent = held(server)
        assert server.client.get("/v1/models").status_code == 200
    with silent:
        assert silent.recv(1) == b""


def test_a_request_waits_for_its_turn_in_the_lobby() -> None:
    """A request whose client has left meanwhile does no harm, and the others are answered."""
    with running(settings(connections=4), FakePool()) as server, ExitStack() as open_ones:
        gone = [held(server, LAST) for _ in range(4)]
        for one in gone:
            one.close()
        stay = [open_ones.enter_context(held(server, LAST)) for _ in range(3)]
        for one in stay:
            assert one.recv(4096).startswith(b"HTTP/1.1 200")
        until(lambda: server.client.get("/health").status_code == 200)
