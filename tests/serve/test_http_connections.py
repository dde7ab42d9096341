"""Connections are bounded: headers, invalid and slow ones, their number, clients that leave."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import threading
from collections import Counter
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from http_server import USER, FakePool, Running, raw, running, settings
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from paradecode.serve import connections
from paradecode.serve.door import KEYED, RANKS, TURN, Door
from paradecode.serve.heads import shown_key
from paradecode.serve.server import bind, room_for
from paradecode.serve.settings import ServerSettings
from patience import PATIENCE, until

# Limits on the size of what arrives, and on how long it takes.


def test_headers_are_bounded(server: Running) -> None:
    large = [{"x": "y" * 40000}, {f"x-{i}": "y" * 100 for i in range(400)}]
    for headers in large:
        assert server.client.get("/health", headers=headers).status_code == 431
    assert server.client.get("/" + "x" * 40000).status_code == 431
    endless = raw(server, b"GET / HTTP/1.1\r\nHost: localhost\r\nx: ", *[b"y" * 9000] * 9)
    assert endless.startswith(b"HTTP/1.1 431")
    response = server.client.get("/health", headers=large[1])
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert server.client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "junk",
    [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/9\r\n\r\n",
     b"GET /health HTTP/1.1\r\nHost: a b\r\nBad Header: x\r\n\r\n",
     b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
     b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
     b"Content-Length: 8\r\n\r\n"],
)  # fmt: skip
def test_what_is_not_http(server: Running, junk: bytes) -> None:
    answer = raw(server, junk, b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["message"]
    assert server.client.get("/health").status_code == 200


def test_slow_headers_and_bodies_are_dropped() -> None:
    with running(settings(header_seconds=0.4, body_seconds=0.4), FakePool()) as server:
        assert raw(server, b"GET /health HTTP/1.1\r\nHost: lo") == b""
        assert raw(server) == b""
        head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        answer = raw(server, head + b"Content-Length: 50\r\n\r\n{")
        assert answer.startswith(b"HTTP/1.1 408")
        assert server.client.get("/health").status_code == 200


@pytest.mark.parametrize(("path", "kind"), [("/nothing", "application/json"), ("/tokenize", "a/b")])
def test_an_answer_before_the_end_of_the_body_says_that_it_closes(
    server: Running, path: str, kind: str
) -> None:
    """An early answer closes the connection and says so.

    A client that did not know would send its next request on this connection.
    """
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
    early = raw(server, f"{head}Content-Length: 9\r\n\r\n[".encode())
    assert early.split()[1] in (b"404", b"415")
    assert early.count(b"\r\nconnection: close\r\n") == 1
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    both = raw(server, f"{head}Content-Length: 1\r\n\r\n[".encode(), last)
    whole, health = both.split(b"HTTP/1.1 ")[1:]
    assert whole.split()[0] == early.split()[1]
    assert b"connection: close" not in whole
    assert health.startswith(b"200")


def test_no_part_of_an_answer_waits_for_the_one_before_it() -> None:
    """A body is sent at once. It does not wait until the client confirms its head (TCP_NODELAY)."""
    sends_at_once = []

    async def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ours = writer.get_extra_info("socket")
        sends_at_once.append(ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    async def connect() -> None:
        async with await asyncio.start_server(connected, sock=bind(settings(port=0))) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            assert await reader.read() == b""
            writer.close()

    asyncio.run(connect())
    assert len(sends_at_once) == 1
    assert sends_at_once[0] != 0


def held(server: Running, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    connection.sendall(sent)
    return connection


def asked(body: object, path: str = "/v1/chat/completions") -> bytes:
    text = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text


def test_connections_at_work_are_bounded() -> None:
    pool = FakePool(pause=60)
    with running(settings(connections=3), pool) as server, ExitStack() as open_ones:
        for _ in range(3):
            open_ones.enter_context(held(server, asked({"messages": USER})))
        until(lambda: len(pool.seen) == 3)
        answer = raw(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after" in answer.lower()
        open_ones.close()
        until(lambda: server.client.get("/health").status_code == 200)


@pytest.mark.parametrize("sent", [b"", b"GET / HT", asked({})[:-1],
                                  b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])  # fmt: skip
def test_idle_connections_keep_nobody_out(sent: bytes) -> None:
    with running(settings(connections=3), FakePool()) as server, ExitStack() as open_ones:
        idle = [open_ones.enter_context(held(server, sent)) for _ in range(9)]
        assert raw(
            server, b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        ).startswith(b"HTTP/1.1 403")
        assert server.client.get("/health").status_code == 200
        with suppress(ConnectionError):
            while idle[0].recv(4096):  # The one that waited longest was closed for another.
                pass


class Guest:
    def __init__(self, rank: int = 0, owner: bytes = b"") -> None:
        self.rank, self.owner, self.left, self.begun = rank, owner, False, 0

    def read(self) -> None:
        self.begun += 1

    def leave(self) -> None:
        self.left = True


def test_of_the_largest_crowd_the_one_that_waits_longest_leaves() -> None:
    """In the largest crowd, the connection that waited longest leaves, so newcomers have time."""
    door = Door(4)
    keyed, _, newcomer = guests = [Guest(KEYED, b"key"), Guest(1), Guest()]
    assert all(map(door.enter, [*guests, Guest()]))
    assert door.enter(Guest())
    assert [guest.left for guest in guests] == [False, True, False]
    door.work(newcomer)
    assert door.enter(Guest())
    assert not keyed.left
    assert not newcomer.left


def test_a_crowd_of_one_key_closes_only_its_own() -> None:
    door, crowd = Door(9), [Guest() for _ in range(30)]
    others = [Guest(1), Guest(KEYED, b"other")]
    assert all(map(door.enter, others))
    for guest in crowd:
        assert door.enter(guest)
        door.work(guest)
        guest.rank, guest.owner = KEYED, b"key"  # It has shown it, and announces a body.
        door.wait(guest)
    assert not any(guest.left for guest in others)
    assert [guest.left for guest in crowd] == [True] * 23 + [False] * 7
    for guest in [*crowd[23:], *others]:
        door.leave(guest)
    assert not door._waiting


def test_who_has_been_answered_makes_place_for_who_has_not() -> None:
    """An idle connection that was answered is closed for a new one.

    Otherwise such connections would leave one place for all clients that come.
    """
    with running(settings(connections=3), FakePool()) as server, ExitStack() as open_ones:
        for _ in range(3):
            idle = open_ones.enter_context(held(server, LAST.replace(b"close", b"keep-alive")))
            assert idle.recv(4096).startswith(b"HTTP/1.1 200")
        late = [open_ones.enter_context(held(server)) for _ in range(3)]
        for one in late:
            one.sendall(LAST)
            assert one.recv(4096).startswith(b"HTTP/1.1 200")


def test_requests_that_arrive_together_take_turns() -> None:
    async def scenario() -> None:
        door, crowd = Door(100), [Guest() for _ in range(3 * TURN)]
        assert [door.turn(guest) for guest in crowd].count(True) == TURN
        late = Guest(2)
        assert not door.turn(late)
        await asyncio.sleep(0)
        assert late.begun  # Who has shown a key is before the strangers.
        assert sum(guest.begun for guest in crowd) == TURN - 1
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert sum(guest.begun for guest in crowd) == 2 * TURN
        assert max(guest.begun for guest in crowd) == 1
        assert door.turn(late)

    asyncio.run(scenario())


@pytest.mark.parametrize("rank", range(RANKS))
def test_a_crowd_of_one_rank_delays_no_other(rank: int) -> None:
    async def scenario() -> None:
        door = Door(100)
        for _ in range(9 * TURN):
            door.turn(Guest(rank))
        others = [Guest(other) for other in range(RANKS) if other != rank]
        assert not any(map(door.turn, others))
        await asyncio.sleep(0)
        assert [other.begun for other in others] == [1] * len(others)

    asyncio.run(scenario())


def test_a_storm_leaves_every_turn_of_the_loop_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a storm, each turn of the loop accepts and begins few connections, so streams continue."""
    counted: dict[str, Counter[int]] = {"enter": Counter(), "_begin": Counter()}
    turn, gate, over = [0], threading.Event(), threading.Event()
    limited = connections.limited

    def watched(chosen: ServerSettings) -> type[HttpToolsProtocol]:
        kind = limited(chosen)
        for owner, name in ((Door, "enter"), (kind, "_begin")):
            plain = getattr(owner, name)

            def noted(self: Any, *given: Any, name: str = name, plain: Any = plain) -> Any:
                counted[name][turn[0]] += 1
                return plain(self, *given)

            monkeypatch.setattr(owner, name, noted)
        return kind

    monkeypatch.setattr("paradecode.serve.server.limited", watched)
    with running(settings(), FakePool()) as server, ExitStack() as open_ones:

        def tick() -> None:
            turn[0] += 1
            if not over.is_set():
                server.loop.call_soon(tick)

        server.loop.call_soon_threadsafe(tick)
        server.loop.call_soon_threadsafe(gate.wait, PATIENCE)
        storm = [open_ones.enter_context(held(server, LAST)) for _ in range(12 * TURN)]
        gate.set()
        for one in storm:
            assert one.recv(4096).startswith(b"HTTP/1.1 200")
        over.set()
    for counts in counted.values():
        assert counts.total() == len(storm)
        assert max(counts.values()) <= TURN


def test_a_key_is_seen_before_anything_else_is_read() -> None:
    """A key is found before the request is parsed, so its holder goes before all strangers."""
    key = "key-of-somebody"
    for line in (
        f"Authorization: Bearer {key}",
        f"authorization:bearer  {key} ",
        f"X-API-Key:{key}",
    ):
        assert shown_key(f"GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n\r\n".encode()) == key
    for line in (f"X-Authorization: Bearer {key}", f"Authorization: Basic {key}", "X-API-Key:"):
        assert shown_key(f"GET /?{key} HTTP/1.1\r\n{line}\r\n\r\n".encode()) == ""
    ranks = []
    turn = Door.turn

    def noted(door: Door, visitor: Guest) -> bool:
        ranks.append(visitor.rank)
        return turn(door, visitor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Door, "turn", noted)
        with running(
            settings(keys=(key, "key-of-another"), public=("health",)), FakePool()
        ) as server:
            for shown in (key, "key-of-another", "key-of-nobody", key):
                mine = b"Authorization: Bearer %s\r\n\r\n" % shown.encode()
                assert raw(server, LAST[:-2] + mine).startswith(b"HTTP/1.1 200")
    assert ranks == [KEYED, KEYED, 0, KEYED]


def test_descriptors_bound_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    asked_for = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked_for.append(limits))
    for soft, hard, room in ((80, 80, 40), (1024, 1024, 896), (1024, 1 << 20, 1024)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, found=(soft, hard): found)
        assert room_for(1024) == room
    assert asked_for[-1][0] > 1024


# Heads, and the forms of a request.

GET = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
LAST = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "status"),
    [(GET + b"a:b\r\n" * 90, 200), (GET + b"a:b\r\n" * 6000, 431),
     (GET + b"Accept: " + b"a," * 1000 + b"\r\n", 200),
     (GET + b"Connection: " + b"a," * 1100 + b"\r\n", 431),
     (b"GET /health?" + b"a&" * 2000 + b" HTTP/1.1\r\nHost: localhost\r\n", 431),
     (b"GET /" + b"%41" * 2000 + b" HTTP/1.1\r\nHost: localhost\r\n", 431),
     (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n", 431),
     (GET + b"a: b\r\n c\r\n", 400), (GET + b"a: b\nc: d\r\n", 400),
     (b"GET /health HTTP/1.1\nHost: localhost\n", 400), (GET + b"Host: localhost\r\n", 400),
     (GET + b"a : b\r\n", 400), (b"GET /health HTTP/1.1\r\n", 400),
     (b"GET /health HTTP/2.0\r\nHost: localhost\r\n", 400), (b"GET /health\r\n", 400),
     (b"GET /health HTTP/1.0\r\n", 403),  # It names no host.
     (b"\r\n" + GET, 200), (b"\r\n" * 9 + GET, 400),
     (b"GET http://localhost/health HTTP/1.1\r\nHost: other\r\n", 200),
     (b"GET http://other/health HTTP/1.1\r\nHost: localhost\r\n", 403),
     (b"GET http://localhost HTTP/1.1\r\nHost: localhost\r\n", 200),
     (b"GET http://localhost?a=b HTTP/1.1\r\nHost: localhost\r\n", 200),
     (b"GET /health// HTTP/1.1\r\nHost: localhost\r\n", 404),
     (b"CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n", 400),
     (GET + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: a\r\n", 200)],
)  # fmt: skip
def test_heads(server: Running, head: bytes, status: int) -> None:
    answer = raw(server, head + b"Connection: close\r\n" * (b"Upgrade" not in head) + b"\r\n", LAST)
    assert answer.startswith(b"HTTP/1.1 %d" % status), answer[:300]
    assert b"location" not in answer.lower()
    if status in (400, 431):
        assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["message"]
    assert server.client.get("/health").status_code == 200


@pytest.mark.parametrize(
    "sent",
    [LAST, LAST.replace(b"/health", b"/nothing"), LAST.replace(b"Host: localhost\r\n", b""),
     LAST.replace(b"localhost", b"other"), b"\x16\x03\x01" * 9, GET + b"a:b\r\n" * 6000 + b"\r\n"],
    ids=["answered", "no route", "no host", "other host", "no HTTP", "too large"],
)  # fmt: skip
def test_who_has_left_leaves_no_garbage(server: Running, sent: bytes) -> None:
    """A client that leaves creates little garbage.

    After a storm, much garbage would make collections stop the server.
    """
    requests = 40
    raw(server, sent)
    gc.collect()
    gc.disable()
    try:
        for _ in range(requests):
            raw(server, sent)
        assert gc.collect() < 20 * requests
    finally:
        gc.enable()


CHUNKED = (b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
           b"Transfer-Encoding: chunked\r\n\r\n")  # fmt: skip


def chunks(*pieces: bytes) -> list[bytes]:
    return [b"%x;a=b\r\n%s\r\n" % (len(piece), piece) for piece in pieces]


@pytest.mark.parametrize(
    ("sent", "status"),
    [([*chunks(b'{"prompt":', b'"a"}'), b"0\r\n\r\n"], 200),
     ([*chunks(b'{"prompt":"a"}'), b"0\r\nHost: other\r\n\r\n" + LAST], 200),
     ([b"".join(chunks(*[b" "] * 1000)), *chunks(b'{"prompt":"a"}'), b"0\r\n\r\n"], 200),
     ([b"".join(chunks(*[b" "] * 2000))], 400), ([b"x\r\n"], 400), ([b"f" * 30 + b"\r\n"], 400),
     ([b"1\r\na", b"b\r\n"], 400), (chunks(b" " * 2_000_000, b" " * 3_000_000), 413),
     ([b"1" + b";a" * 5_000_000], 413)],
)  # fmt: skip
def test_bodies_in_chunks(server: Running, sent: list[bytes], status: int) -> None:
    with suppress(ConnectionError):
        answer = raw(server, CHUNKED, *sent)
        assert answer.startswith(b"HTTP/1.1 %d" % status), answer[:300]
        assert answer.count(b"HTTP/1.1") == 1  # Nothing behind it was read as a request.
        assert b"connection: close" in answer
    assert server.client.get("/health").status_code == 200


def test_an_upgrade_with_a_body_is_answered(server: Running) -> None:
    """A request that asks for an upgrade is answered. Java's client asks for HTTP/2 at first."""
    plain = asked({"prompt": "a"}, "/tokenize")
    more = b"\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: a\r\n\r\n"
    answer = raw(server, plain.replace(b"\r\n\r\n", more), LAST)
    assert [one[:3] for one in answer.split(b"HTTP/1.1 ")[1:]] == [b"200", b"200"]


@pytest.mark.parametrize("expects", [b"100-continue", b"something"])
def test_expectations(server: Running, expects: bytes) -> None:
    head, _, body = asked({"prompt": "a"}, "/tokenize").partition(b"\r\n\r\n")
    with held(server, head + b"\r\nExpect: " + expects + b"\r\n\r\n") as connection:
        if expects == b"100-continue":
            assert connection.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(body)
        assert connection.recv(4096).startswith(b"HTTP/1.1 200")


def test_requests_in_one_piece_are_answered_in_turn(server: Running) -> None:
    answer = raw(server, asked({"prompt": "a"}, "/tokenize") * 3 + LAST)
    assert [one[:3] for one in answer.split(b"HTTP/1.1 ")[1:]] == [b"200"] * 4


def test_a_client_may_end_its_side_and_read(server: Running) -> None:
    server.pool.pause = 0.2
    with held(server, asked({"messages": USER}) * 2) as connection:
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.count(b"HTTP/1.1 100") >= 2  # Asked whether somebody reads.


# Clients that leave, or do not read.


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_request(server: Running, stream: bool) -> None:
    server.pool.endless, server.pool.pause = True, 0.01
    body = json.dumps({"messages": USER, "stream": stream}).encode()
    head = (f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
            "\r\nContent-Type: application/json\r\n\r\n").encode()  # fmt: skip
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + body)
        if stream:
            answer = b""
            while b"chat.completion.chunk" not in answer:
                answer += connection.recv(65536)
        until(lambda: server.pool.seen)
        assert server.pool.left == []
    until(lambda: server.pool.left == [server.pool.seen[0].id])


def test_a_client_that_leaves_in_the_queue_cancels_its_request(server: Running) -> None:
    server.pool.pause = 60
    body = json.dumps({"prompt": ["a", "b"], "stream": True}).encode()
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
            "\r\nContent-Type: application/json\r\n\r\n").encode()  # fmt: skip
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + body)
        until(lambda: len(server.pool.seen) == 2)
    until(lambda: len(server.pool.left) == 2)


def test_a_client_that_does_not_read_is_dropped() -> None:
    pool = FakePool(texts=["x" * 20000], endless=True)
    with running(settings(write_seconds=0.5), pool) as server:
        body = json.dumps({"messages": USER, "stream": True}).encode()
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.port))
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            until(lambda: pool.left)


def test_silent_streams_are_kept_alive() -> None:
    with running(settings(ping_seconds=0.1), FakePool(pause=0.5)) as server:
        text = server.chat(stream=True).text
        assert text.count(": still here") >= 4
        assert text.endswith("data: [DONE]\n\n")
