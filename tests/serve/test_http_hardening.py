"""What a server must resist: bounds, types, keys, hosts, slow and vanishing clients."""

from __future__ import annotations

import ast
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from http_server import JSON, USER, FakePool, Running, running, settings

from paradecode.core.errors import InvalidInput
from paradecode.serve import security, strict_json
from paradecode.serve.security import tenant

KEYS = ("first-key-of-two", "other-key-of-two")
SERVE = Path(security.__file__).parent
ROUTES = [
    ("GET", "/"), ("GET", "/v1/models"), ("GET", "/v1/models/tiny"), ("GET", "/health"),
    ("GET", "/metrics"), ("GET", "/version"), ("GET", "/openapi.json"), ("GET", "/docs"),
    ("GET", "/page/methods"), ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"),
    ("POST", "/v1/responses"), ("POST", "/tokenize"), ("POST", "/detokenize"),
    ("DELETE", "/v1/models"), ("GET", "/no/such/route"),
]  # fmt: skip


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with running(settings(), FakePool()) as server:
        yield server


@pytest.fixture
def server(shared: Running) -> Running:
    for name, value in vars(FakePool()).items():
        setattr(shared.pool, name, value)
    return shared


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    with running(settings(keys=KEYS, public=("health",)), FakePool()) as server:
        yield server


def send(server: Running, body: bytes, path: str = "/v1/completions", **headers: str) -> Any:
    return server.client.post(path, content=body, headers={**JSON, **headers})


def until(condition: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


# 1, 7, 12: nothing from a request is run, opened or fetched.


def test_no_source_of_the_server_can_run_what_it_reads() -> None:
    bad = {"pickle", "dill", "marshal", "shelve", "cloudpickle", "torch", "requests", "urllib3"}
    for path in SERVE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [getattr(node, "module", "") or "", *(alias.name for alias in node.names)]
                assert not {name.split(".")[0] for name in names} & bad, path
                assert "urllib.request" not in names, path
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile", "__import__"), path


@pytest.mark.parametrize(
    "field",
    ["trust_remote_code", "draft_model", "lora", "adapter", "model_path", "prompt_embeds",
     "logits_processors", "custom_logit_processor", "chat_template", "chat_template_kwargs"],
)  # fmt: skip
def test_fields_that_would_load_or_run_something(server: Running, field: str) -> None:
    response = server.chat(**{field: "x"})
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "unknown_field"


@pytest.mark.parametrize("model", ["/etc/passwd", "../tiny", "tiny\0", "http://127.0.0.1/x", ""])
def test_models_are_names_of_the_server(server: Running, model: str) -> None:
    assert server.chat(model=model).status_code == 404
    assert server.pool.seen == []


# 3: bounds refuse, they do not clamp.


@pytest.mark.parametrize(
    ("field", "value"),
    [("n", 0), ("n", 129), ("n", -1), ("logprobs", 21), ("logprobs", -1), ("stop", ["x"] * 17),
     ("stop", "x" * 1025), ("stop", ""), ("logit_bias", {str(i): 1 for i in range(1025)}),
     ("logit_bias", {"5": 101}), ("logit_bias", {"-1": 1}), ("logit_bias", {"x": 1}),
     ("logit_bias", {"1": 1, "01": 2}), ("max_tokens", 0), ("max_tokens", 1 << 21),
     ("max_tokens", 513), ("min_tokens", -1), ("temperature", 2.1), ("temperature", -0.1),
     ("top_p", 0), ("top_p", 1.1), ("min_p", -0.1), ("top_k", -2), ("top_k", 1 << 31),
     ("presence_penalty", 2.1), ("frequency_penalty", -2.1), ("repetition_penalty", 0),
     ("stop_token_ids", [-1]), ("stop_token_ids", [1] * 1025),
     ("priority", 101), ("deadline", 0), ("deadline", 1e9), ("prompt", "x" * ((1 << 21) + 1)),
     ("prompt", []), ("prompt", [[]]), ("prompt", [-1]), ("prompt", ["a"] * 65),
     ("speculative", {f"k{i}": 1 for i in range(33)}), ("speculative", "x" * 1025),
     ("guided_choice", ["x"] * 1025), ("guided_choice", []), ("guided_choice", [""]),
     ("guided_regex", "x" * 65537), ("guided_grammar", ""), ("cache_salt", ""),
     ("metadata", {str(i): "x" for i in range(17)}), ("user", "x" * 257), ("best_of", 2)],
)  # fmt: skip
def test_bounds(server: Running, field: str, value: Any) -> None:
    response = server.complete(**{field: value})
    error = response.json()["error"]
    assert response.status_code == 400, error
    assert error["param"].startswith(field if field != "prompt" else ("prompt", "n")), error
    assert len(response.content) < 1500  # Large values are not sent back.
    assert server.pool.seen == []


def test_outputs_of_one_request(server: Running) -> None:
    assert server.complete(prompt=["a"] * 8, n=8).status_code == 200
    assert server.complete(prompt=["a"] * 8, n=9).status_code == 400


# 4: types.


@pytest.mark.parametrize(
    "body",
    [b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "a", "temperature": Infinity}',
     b'{"prompt": "a", "temperature": 1e999}', b'{"prompt": "a", "temperature": -Infinity}',
     b'{"prompt": "a", "n": true}', b'{"prompt": "a", "n": 1.0}', b'{"prompt": "a", "n": "1"}',
     b'{"prompt": "a", "stream": 1}', b'{"prompt": "a", "temperature": false}',
     b'{"prompt": "a", "seed": 99999999999999999999999}', b'{"prompt": [true]}',
     b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", b'{"prompt": "\\ud800"}',
     b'{"prompt": "a", "stop": "\\udfff"}', b'{"\\ud800": 1, "prompt": "a"}',
     b'{"prompt": "a", "prompt": "b"}', b'{"prompt": "a", "guided_json": {"a": 1, "a": 2}}',
     b'{"prompt": "a", "guided_json": ' + b'{"a":' * 70 + b"1" + b"}" * 70 + b"}",
     b"[" * 100000, b'{"a":' * 100000, b"\xff\xfe{", b"\xef\xbb\xbf{}", "{}".encode("utf-16"),
     b"", b"null", b"[]", b'"x"', b"1", b"{", b'{"prompt": }', b"{}x", b'{"prompt": 1}',
     b'{"prompt": {"a": 1}}', b"{'prompt': 'a'}", b'{"prompt": "a\x00b\nc"}'],
    ids=range(35),
)  # fmt: skip
def test_types(server: Running, body: bytes) -> None:
    response = send(server, body)
    assert response.status_code == 400
    assert response.json()["error"]["message"]
    assert server.pool.seen == []


def test_many_small_values_are_too_many() -> None:
    with pytest.raises(InvalidInput, match="values"):
        strict_json.read(b"[" + b"0," * (1 << 20) + b"0]")
    assert strict_json.read(b'{"a": [1, -9223372036854775808, 18446744073709551615, 1.5]}')


def test_depth_is_exact() -> None:
    fits = b"[" * strict_json.MAX_DEPTH + b"]" * strict_json.MAX_DEPTH
    assert strict_json.read(fits) is not None
    with pytest.raises(InvalidInput, match="levels"):
        strict_json.read(b"[" + fits + b"]")


def test_content_types(server: Running) -> None:
    body = json.dumps({"prompt": "a"}).encode()
    good = ["application/json", "application/json; charset=utf-8", "APPLICATION/JSON"]
    for kind in good:
        assert send(server, body, **{"content-type": kind}).status_code == 200
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert send(server, body, **{"content-type": kind}).status_code == 415
    assert send(server, body, **{"content-encoding": "gzip"}).status_code == 415


# 3: sizes of what arrives.


def test_bodies_are_bounded() -> None:
    pool = FakePool()
    with running(settings(body_bytes=1000), pool) as server:
        assert send(server, b" " * 1001).status_code == 413

        def pieces() -> Iterator[bytes]:
            for _ in range(100):
                yield b" " * 100

        response = server.client.post("/v1/completions", content=pieces(), headers=JSON)
        assert response.status_code == 413
        assert response.json()["error"]["type"] == "invalid_request_error"
        assert server.complete().status_code == 200


def raw(server: Running, *sent: bytes, wait: float = 5.0) -> bytes:
    """Send bytes; everything that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait) as connection:
        for piece in sent:
            connection.sendall(piece)
        answer = b""
        try:
            while piece := connection.recv(65536):
                answer += piece
        except (TimeoutError, ConnectionError):
            pass
        return answer


def test_headers_are_bounded(server: Running) -> None:
    large = [{"x": "y" * 40000}, {f"x-{i}": "y" * 100 for i in range(400)}]
    for headers in large:
        assert server.client.get("/health", headers=headers).status_code == 431
    assert server.client.get("/" + "x" * 40000).status_code == 431
    endless = raw(server, b"GET / HTTP/1.1\r\nHost: localhost\r\nx: ", *[b"y" * 9000] * 9, wait=2)
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
    answer = raw(server, junk, b"\r\n\r\n", wait=2)
    assert answer.startswith(b"HTTP/1.1 400")
    assert json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]["message"]
    assert server.client.get("/health").status_code == 200


def test_slow_headers_and_bodies_are_dropped() -> None:
    with running(settings(header_seconds=0.4, body_seconds=0.4), FakePool()) as server:
        began = time.monotonic()
        assert raw(server, b"GET /health HTTP/1.1\r\nHost: lo") == b""
        assert raw(server) == b""
        head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        answer = raw(server, head + b"Content-Length: 50\r\n\r\n{")
        assert answer.startswith(b"HTTP/1.1 408")
        assert time.monotonic() - began < 8
        assert server.client.get("/health").status_code == 200


def test_connections_are_bounded() -> None:
    with running(settings(connections=3), FakePool()) as server:
        server.client.get("/health")  # Stays open.
        held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
        time.sleep(0.2)
        answer = raw(server)
        assert answer.startswith(b"HTTP/1.1 503")
        assert b"retry-after" in answer.lower()
        for connection in held:
            connection.close()
        until(lambda: server.client.get("/health").status_code == 200)


# 8: keys.


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_a_key_on_every_route(guarded: Running, method: str, path: str) -> None:
    wrong = [{}, {"authorization": "Bearer wrong-key"}, {"authorization": KEYS[0]},
             {"authorization": f"Basic {KEYS[0]}"}, {"authorization": f"Bearer {KEYS[0]}x"},
             {"authorization": "Bearer"}, {"authorization": b"Bearer \xe9"}]  # fmt: skip
    for headers in wrong:
        request = guarded.client.build_request(method, path, headers=headers)
        if "authorization" not in headers:
            del request.headers["authorization"]
        response = guarded.client.send(request)
        if path == "/health":
            assert response.status_code == 200  # It was opened.
            continue
        assert response.status_code == 401
        assert response.json()["error"]["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
    for key in KEYS:
        headers = {"authorization": f"Bearer {key}"}
        assert guarded.client.request(method, path, headers=headers).status_code != 401


def test_an_opened_page_opens_no_other_route() -> None:
    with running(settings(keys=KEYS, public=("page",)), FakePool()) as server:
        del server.client.headers["authorization"]
        assert server.client.get("/").status_code != 401
        for path in ("/v1/models", "/metrics", "/pages", "//v1/models", "/page/../metrics"):
            assert server.client.get(path).status_code in (401, 404), path
        sly = b"GET /page/../metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        assert raw(server, sly).startswith(b"HTTP/1.1 404")


def test_keys_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((len(a), len(b)))
        return a == b

    monkeypatch.setattr(security.hmac, "compare_digest", compare)
    guard = security.Guard(None, KEYS)  # type: ignore[arg-type]
    for key in (KEYS[0], "short", ""):
        guard._refusal("/", security.Headers({"authorization": f"Bearer {key}"}))
    assert compared == [(32, 32)] * 6  # All keys, every time, and digests only.


def test_no_public_address_without_a_key() -> None:
    for host in ("0.0.0.0", "::", "192.168.0.7"):
        with pytest.raises(InvalidInput, match="api-key"):
            settings(host=host)
        assert settings(host=host, keys=KEYS).hosts is None
        assert settings(host=host, force=True).hosts is None


def test_keys_are_never_shown() -> None:
    with pytest.raises(InvalidInput) as refused:
        settings(keys=("secret",))
    assert "secret" not in str(refused.value)


def test_other_hosts_are_refused_without_a_key(server: Running, guarded: Running) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "", "[::1", "a:b:c"):
        response = server.client.get("/health", headers={"host": host})
        assert response.status_code == 403, host
        assert response.json()["error"]["code"] == "unknown_host"
    for host in ("localhost", "LOCALHOST:80", f"127.0.0.1:{server.port}", "[::1]:8000"):
        assert server.client.get("/health", headers={"host": host}).status_code == 200, host
    assert guarded.client.get("/v1/models", headers={"host": "any.example"}).status_code == 200


def test_no_cross_origin_answers(server: Running) -> None:
    response = server.client.options(
        "/v1/chat/completions",
        headers={"origin": "https://evil.example", "access-control-request-method": "POST"},
    )
    assert response.status_code == 405
    assert not any(name.startswith("access-control") for name in response.headers)


# 9: tenants.


def test_tenants_are_the_keys_and_salts(guarded: Running) -> None:
    guarded.pool.seen.clear()
    for key in KEYS:
        for salt in (None, "a", "b"):
            body = {"prompt": "x"} if salt is None else {"prompt": "x", "cache_salt": salt}
            guarded.post("/v1/completions", body, headers={"authorization": f"Bearer {key}"})
    salts = [request.salt for request in guarded.pool.seen]
    assert len(set(salts)) == 6
    assert not any(key in salt for key in KEYS for salt in salts)


def test_no_two_pairs_of_key_and_salt_are_one_tenant() -> None:
    pairs = [("", None), ("", "a"), ("a", None), ("a", ""), ("a", "a"), ("a.b", None), ("a", "b")]
    assert len({tenant(*pair) for pair in pairs}) == len(pairs)


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
            assert b"chat.completion.chunk" in connection.recv(65536) + connection.recv(65536)
        until(lambda: server.pool.seen)
        assert server.pool.left == []
    until(lambda: server.pool.left == [server.pool.seen[0].id], 2)


def test_a_client_that_leaves_in_the_queue_cancels_its_request(server: Running) -> None:
    server.pool.pause = 60
    body = json.dumps({"prompt": ["a", "b"], "stream": True}).encode()
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
            "\r\nContent-Type: application/json\r\n\r\n").encode()  # fmt: skip
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + body)
        until(lambda: len(server.pool.seen) == 2)
    until(lambda: len(server.pool.left) == 2, 2)


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
            until(lambda: pool.left, 10)


def test_silent_streams_are_kept_alive() -> None:
    with running(settings(ping_seconds=0.1), FakePool(pause=0.5)) as server:
        text = server.chat(stream=True).text
        assert text.count(": still here") >= 4
        assert text.endswith("data: [DONE]\n\n")


# 6, 11: faults.


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


def test_many_at_the_same_time(server: Running) -> None:
    server.pool.pause = 0.01
    found: list[int] = []

    def ask() -> None:
        with server_client(server) as client:
            found.append(client.post("/v1/completions", json={"prompt": "a"}).status_code)

    threads = [threading.Thread(target=ask) for _ in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [200] * 64
    assert server.pool.left == []


def server_client(server: Running) -> Any:
    import httpx

    return httpx.Client(base_url=server.url, timeout=60)
