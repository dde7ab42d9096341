"""A request's cost in time and memory for the front is small, and bounded by its length."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from typing import Any

import pytest
from http_server import JSON, USER, FakePool, Running, raw, running, settings
from pydantic_core import ErrorDetails

from paradecode.core.errors import InvalidInput
from paradecode.serve import strict_json
from paradecode.serve.errors import ApiError
from paradecode.serve.keys import KeyLimits
from paradecode.serve.limits import Account
from paradecode.serve.protocol import base
from paradecode.serve.protocol.base import Body
from paradecode.serve.reading import ArrivingBodies
from paradecode.serve.validation import MOST
from patience import until

KEYS = ("first-key-of-two", "other-key-of-two")


def twice(keys: int) -> str:
    """Return an object in JSON whose last key is given twice."""
    return "{" + ",".join(f'"{i}":0' for i in range(keys)) + f',"{keys - 1}":1}}'


def test_a_key_given_twice_is_found_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidInput, match="an object of 40001 keys"):
        strict_json.read(twice(40_000).encode())
    monkeypatch.setattr(strict_json, "MAX_KEYS", 500_001)
    with pytest.raises(InvalidInput, match="'499999' is given twice"):
        strict_json.read(twice(500_000).encode())  # Quadratic time would be an hour.


@pytest.mark.parametrize(
    ("body", "problem"),
    [(b"[" + b"[]," * strict_json.MAX_BRACKETS + b"0]", "brackets"),
     (json.dumps(dict.fromkeys(map(str, range(strict_json.MAX_KEYS + 1)))).encode(), "keys")],
    ids=["lists", "keys"],
)  # fmt: skip
def test_what_grows_when_it_is_read_is_bounded(body: bytes, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        strict_json.read(body)


def test_earlier_calls_are_read_with_the_body(server: Running) -> None:
    """Earlier calls are parsed with the body.

    On the event loop, a long one would stop all requests.
    """
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": [1]}'}}
    said = {"role": "assistant", "tool_calls": [call]}
    broken = {**call, "function": {"name": "f", "arguments": twice(3)}}
    for given, wanted in ((call, {"x": [1]}), (broken, twice(3))):
        messages = [*USER, {**said, "tool_calls": [given]}, *USER]
        assert server.chat(model="caller", messages=messages).status_code == 200
        (seen,) = server.pool.seen[-1].prompt.messages[1]["tool_calls"]
        assert seen["function"]["arguments"] == wanted


WIDE: dict[str, Any] = {
    "lists of texts that must not be empty": {"prompt": [[""] * 240] * 1000},
    "texts where tokens belong": {"prompt": ["a"] * 4000 + [1]},
    "bias of no token": {"prompt": "a", "logit_bias": {f"x{i}": 1 for i in range(8000)}},
    "unknown fields": {"prompt": "a", **{f"x{i}": 1 for i in range(8000)}},
    "stops": {"prompt": "a", "stop": [1] * 200_000},
    "settings": {"prompt": "a", "speculative": {str(i): [1] * 100 for i in range(2000)}},
}


@pytest.mark.parametrize("name", WIDE)
def test_a_million_errors_cost_as_much_as_one(
    server: Running, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body with a million errors reports few. Each reported error takes time and memory."""
    told = []
    path_of = base.path_of

    def counted(value: Any, detail: ErrorDetails) -> list[str | int]:
        told.append(detail)
        return path_of(value, detail)

    monkeypatch.setattr(base, "path_of", counted)
    response = server.complete(**WIDE[name])
    assert response.status_code == 400
    assert len(response.content) < 1500
    assert len(told) <= MOST


def test_every_list_of_a_body_ends_at_its_first_bad_entry() -> None:
    lists = 0

    def check(part: Any, kind: type) -> None:
        nonlocal lists
        if isinstance(part, dict):
            if part.get("type") == "list":
                lists += 1
                assert part["fail_fast"], kind
            for inner in part.values():
                check(inner, kind)
        elif isinstance(part, (list, tuple)):
            for inner in part:
                check(inner, kind)

    def every(kind: type[Body]) -> list[type[Body]]:
        return [kind, *(one for inner in kind.__subclasses__() for one in every(inner))]

    for kind in every(Body):
        check(kind.__pydantic_core_schema__, kind)
    assert lists > 10


def test_bodies_on_their_way_are_bounded_together(server: Running, monkeypatch: Any) -> None:
    monkeypatch.setattr("paradecode.serve.reading.BODIES", 100)
    response = server.complete(prompt="x" * 200)
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) >= 1
    assert server.complete().status_code == 200


def test_a_key_leaves_room_for_the_bodies_of_others(monkeypatch: Any) -> None:
    monkeypatch.setattr("paradecode.serve.reading.BODIES", 120)
    bodies = ArrivingBodies()
    one, two, three = (Account(name, KeyLimits(), name) for name in ("one", "two", "three"))
    for account, share in ((one, 60), (two, 30), (three, 15)):
        bodies.add(account, share)
        with pytest.raises(ApiError, match="too many bodies"):
            bodies.add(account, 1)
    bodies.remove(one, 60)
    bodies.add(three, 30)


def test_headers_alone_take_no_room(server: Running, monkeypatch: Any) -> None:
    """Headers that promise large bodies take no room, so other bodies are still accepted."""
    monkeypatch.setattr("paradecode.serve.reading.BODIES", 1600)
    with ExitStack() as held:
        for _ in range(16):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            held.enter_context(connection)
            connection.sendall(HEAD + b"Content-Length: 100\r\n\r\n{")
        assert [server.complete().status_code for _ in range(3)] == [200] * 3


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@pytest.mark.parametrize(
    "framing",
    [b"Transfer-Encoding: identity\r\n", b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
     b"Transfer-Encoding: identity\r\nContent-Length: 5\r\n",
     b"Transfer-Encoding: gzip, chunked\r\n"],
)  # fmt: skip
def test_bodies_say_their_length_once(server: Running, framing: bytes) -> None:
    answer = raw(server, HEAD + framing + b"\r\n", b"1\r\n{\r\n" * 1000)
    assert answer.startswith((b"HTTP/1.1 411", b"HTTP/1.1 400", b"HTTP/1.1 501")), answer[:80]
    assert answer.count(b"HTTP/1.1") == 1
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["message"]


def closed(connection: socket.socket) -> bool:
    """Return whether the other end of the connection takes no more bytes."""
    try:
        connection.sendall(b"x" * 1000)
    except OSError:
        return True
    return False


def test_what_follows_a_refusal_is_not_read() -> None:
    with running(settings(keys=KEYS), FakePool()) as server:
        request = HEAD + b"Content-Length: 4000000\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
            connection.sendall(request)
            answer = connection.recv(65536)
            assert answer.startswith(b"HTTP/1.1 401")
            until(lambda: closed(connection))  # The server does not wait for the rest.
        # A request that arrived whole keeps its connection open.
        for _ in range(2):
            wrong = {"authorization": "Bearer nobody"}
            assert server.client.post("/tokenize", json={}, headers=wrong).status_code == 401
        assert server.client.post("/tokenize", json={"prompt": "a"}, headers=JSON).is_success


@pytest.mark.parametrize("length", [3_000_000, 9_000_000])
def test_an_answer_before_the_end_of_the_body_arrives(length: int) -> None:
    """An early answer arrives.

    If the connection closed with unread bytes, the answer would be lost.
    """
    with running(settings(body_seconds=0.3), FakePool()) as server:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", server.port), timeout=30) as connection:
                connection.sendall(HEAD + b"Content-Length: %d\r\n\r\n" % length)
                for _ in range(60):
                    connection.sendall(b"x" * 1000)
                answer = b""
                while piece := connection.recv(65536):  # Raises if the connection is reset.
                    answer += piece
            assert answer.startswith((b"HTTP/1.1 408", b"HTTP/1.1 413")), answer[:60]


def test_a_field_of_other_objects_is_ignored(server: Running) -> None:
    """A field that belongs to other objects only is ignored."""
    answer = server.complete(content="x")
    assert (answer.status_code, answer.headers["x-paradecode-ignored"]) == (200, "content")
