"""Every route needs a key, tenants are separate, and a server without a key is protected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from http_server import FakePool, Running, raw, running, settings

from paradecode.core.errors import InvalidInput
from paradecode.serve import security
from paradecode.serve.keys import Key
from paradecode.serve.security import tenant

KEYS = ("first-key-of-two", "other-key-of-two")
ROUTES = [
    ("GET", "/v1/models"), ("GET", "/v1/models/tiny"), ("GET", "/health"),
    ("GET", "/metrics"), ("GET", "/version"), ("GET", "/openapi.json"), ("GET", "/docs"),
    ("POST", "/v1/chat/completions"), ("POST", "/v1/completions"),
    ("POST", "/v1/responses"), ("POST", "/tokenize"), ("POST", "/detokenize"),
    ("POST", "/apply-template"),
    ("DELETE", "/v1/models"), ("GET", "/no/such/route"),
]  # fmt: skip


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    with running(settings(keys=KEYS, public=("health",)), FakePool()) as server:
        yield server


# Keys.


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


def test_the_open_page_opens_no_other_route() -> None:
    with running(settings(keys=KEYS), FakePool()) as server:
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
    chosen = settings(keys=KEYS)
    guard = security.Guard(None, chosen, security.accounts_of(chosen.keys))  # type: ignore[arg-type]
    for key in (KEYS[0], "short", ""):
        guard._refusal("/v1/models", security.Headers(), security.digest(key))
    assert compared == [(32, 32)] * 6  # All keys are compared, by digests.


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


@pytest.mark.parametrize(("method", "path"), [*ROUTES, ("GET", "/"), ("GET", "/page")])
def test_what_a_client_calls_the_server_is_in_no_answer(
    guarded: Running, method: str, path: str
) -> None:
    """No answer contains the name by which a client calls the server, in a redirect or a link.

    A proxy may keep the answer for other clients.
    """
    for asked in (path, f"{path}/", f"/{path}", f"{path}?a=b"):
        for target in (asked, f"http://evil.example{asked}"):
            head = f"{method} {target} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n"
            for shown in ("", f"Authorization: Bearer {KEYS[0]}\r\n"):
                answer = raw(guarded, f"{head}{shown}\r\n".encode())
                assert answer.startswith(b"HTTP/1.1 ")
                assert not answer.startswith(b"HTTP/1.1 3")
                assert b"evil" not in answer


def test_no_cross_origin_answers(server: Running) -> None:
    response = server.client.options(
        "/v1/chat/completions",
        headers={"origin": "https://evil.example", "access-control-request-method": "POST"},
    )
    assert response.status_code == 405
    assert not any(name.startswith("access-control") for name in response.headers)


# Tenants.


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


def test_a_key_sees_nothing_of_another_ones_work() -> None:
    keys = (Key(name="one", key=KEYS[0]), Key(name="two", key=KEYS[1]),
            Key(name="boss", key="key-of-the-operator", operator=True))  # fmt: skip
    with running(settings(keys=keys), FakePool()) as server:
        server.complete()
        seen = {}
        for key in keys:
            headers = {"authorization": f"Bearer {key.key}"}
            blocks = server.client.get("/v1/blocks", headers=headers)
            assert blocks.status_code == (200 if key.operator else 403)
            seen[key.name] = server.client.get("/metrics", headers=headers).text
    for name in ("one", "two"):
        lines = [line for line in seen[name].splitlines() if not line.startswith("#")]
        assert lines
        assert all(f'key="{name}"' in line for line in lines)
    assert 'paradecode:key_requests_total{key="one"} 1.0' in seen["boss"]
    assert "paradecode:http_responses_total" in seen["boss"]
