"""Connections: headers, junk, slow ones, too many, clients that leave or do not read."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from http_server import USER, FakePool, Running, raw, running, settings

from paradecode.serve.server import bind
from patience import until

# 3: sizes of what arrives, and how long it takes.


def test_headers_are_bounded(server: Running) -> None:
    large = [{"x": "y" * 40000}, {f"x-{i}": "y" * 100 for i in range(400)}]
    for headers in large:
        assert server.client.get("/health", headers=headers).status_code == 431
    assert server.client.get("/" + "x" * 40000).status_code == 431
    endless = raw(server, b"GET / HTTP/1.1\r\nHost: localhost\r\nx: ", *[b"y" * 9000] * 9)
    assert endless.startswith(b"HTTP/1.1 400")
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
    """A client that does not know would send its next request on that connection."""
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
    """Nagle's algorithm would hold back a body until the client has confirmed its head."""
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


def test_connections_are_bounded() -> None:
    with running(settings(connections=3), FakePool()) as server:
        server.client.get("/health")  # Stays open.
        held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
        answers: list[bytes] = []

        def refused() -> bool:  # Once the server has seen the others.
            answers.append(raw(server))
            return answers[-1].startswith(b"HTTP/1.1 503")

        until(refused)
        assert b"retry-after" in answers[-1].lower()
        for connection in held:
            connection.close()
        until(lambda: server.client.get("/health").status_code == 200)


# 10: clients that leave, or do not read.


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
