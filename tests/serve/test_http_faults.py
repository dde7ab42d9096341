"""A fault fails only its own request, and tells nothing. Many requests may run at the same time."""

from __future__ import annotations

import io
import json
import threading
from contextlib import redirect_stderr

import httpx
import pytest
from http_server import FakePool, Running, running, settings

# Faults of the server fail one request.


def test_a_crash_tells_nothing() -> None:
    logged = io.StringIO()
    pool = FakePool(crash=True)
    with redirect_stderr(logged), running(settings(log_requests=True), pool) as server:
        response = server.chat(messages=[{"role": "user", "content": "my private words"}])
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"
        assert "secret" not in response.text
        assert "Traceback" not in response.text
        stream = server.chat(stream=True)
        assert stream.status_code == 500
        pool.crash = False
        assert server.chat(messages=[{"role": "user", "content": "other words"}]).status_code == 200
    said = logged.getvalue()
    assert "RuntimeError" in said
    assert "http_server.py" in said
    for hidden in ("private", "words", "secret", "Hello"):
        assert hidden not in said


def test_the_log_has_no_text_and_one_line_a_request() -> None:
    logged = io.StringIO()
    with redirect_stderr(logged), running(settings(log_requests=True), FakePool()) as server:
        server.chat(stream=True, messages=[{"role": "user", "content": "private"}])
        server.complete(prompt="private", temperature="private")
        server.client.get("/private")
    lines = [json.loads(line) for line in logged.getvalue().splitlines()]
    statuses = [line["status"] for line in lines if line["event"] == "request"]
    assert sorted(statuses) == [200, 400, 404]
    assert "private" not in logged.getvalue()


def test_an_id_on_every_answer(server: Running) -> None:
    first, second = server.chat(), server.client.get("/nope")
    assert first.headers["x-request-id"] in first.json()["id"]
    assert second.headers["x-request-id"] != first.headers["x-request-id"]


def test_routes_and_methods(server: Running) -> None:
    for method, path, status in (("GET", "/nope", 404), ("GET", "/v1/completions", 405),
                                 ("PUT", "/health", 405), ("POST", "/v1/models", 405)):  # fmt: skip
        response = server.client.request(method, path)
        assert response.status_code == status
        assert response.json()["error"]["message"]
        assert ("allow" in response.headers) == (status == 405)


@pytest.mark.wide
def test_many_at_the_same_time(server: Running) -> None:
    server.pool.pause = 0.01
    found: list[int] = []

    def ask() -> None:
        with httpx.Client(base_url=server.url, timeout=60) as client:
            found.append(client.post("/v1/completions", json={"prompt": "a"}).status_code)

    threads = [threading.Thread(target=ask) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 64
    assert server.pool.left == []
