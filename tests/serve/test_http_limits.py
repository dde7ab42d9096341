"""Limits of keys over HTTP: which requests are refused or wait, and what the answers say."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from http_server import USER, FakePool, Running, running, settings

from paradecode.serve.keys import Key
from paradecode.serve.metrics import Metrics
from paradecode.serve.wire import Failure
from patience import until

KEYS = (
    Key(name="free", key="key-without-limits"),
    Key(name="few", key="key-of-few-requests", requests_per_minute=3),
    Key(name="short", key="key-of-few-tokens", tokens_per_minute=100),
    Key(name="narrow", key="key-of-one-output", sequences=1, queue=1),
    Key(name="boss", key="key-of-the-operator", operator=True),
    Key(name="low", key="key-of-low-priority", priorities=(10, 20), salts=("a",)),
)


@pytest.fixture
def server() -> Iterator[Running]:
    with running(settings(keys=KEYS), FakePool()) as found:
        yield found


def ask(server: Running, name: str, **body: Any) -> httpx.Response:
    (key,) = (one.key for one in KEYS if one.name == name)
    asked = {"prompt": "abcd", "max_tokens": 10, **body}
    return server.post("/v1/completions", asked, headers={"authorization": f"Bearer {key}"})


def error(response: httpx.Response) -> tuple[int, str | None, str | None]:
    said = response.json()["error"]
    return response.status_code, said["param"], said["code"]


def test_requests_a_minute(server: Running) -> None:
    """Every request counts, even one with a wrong body, but not one that the limit refuses."""
    assert ask(server, "few", max_tokens=-1).status_code == 400
    for left in (1, 0):
        answer = ask(server, "few", stream=not left)
        assert answer.status_code == 200
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert answer.headers["x-ratelimit-remaining-requests"] == str(left)
        assert 59 < float(answer.headers["x-ratelimit-reset-requests"].rstrip("s")) <= 60
        assert "x-ratelimit-limit-tokens" not in answer.headers
    server.pool.seen.clear()
    for _ in range(2):
        refused = ask(server, "few")
        assert error(refused) == (429, None, "rate_limit_exceeded")
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert 55 <= int(refused.headers["retry-after"]) <= 60
        exact = float(refused.headers["retry-after-ms"])
        assert 55_000 < exact <= 1000 * int(refused.headers["retry-after"])
    assert server.pool.seen == []
    other = ask(server, "free")  # Another key has limits of its own, or none.
    assert other.status_code == 200
    assert not any(name.startswith("x-ratelimit") for name in other.headers)


def test_the_body_is_not_read_before(server: Running) -> None:
    for _ in range(3):
        ask(server, "few")
    headers = {"authorization": f"Bearer {KEYS[1].key}", "content-type": "application/json"}
    for path in ("/v1/chat/completions", "/v1/messages", "/tokenize", "/v1/embeddings"):
        assert server.client.post(path, content=b"{", headers=headers).status_code == 429
    assert server.client.get("/v1/models", headers=headers).status_code == 200


def test_tokens_a_minute(server: Running) -> None:
    """The tokens of prompts and outputs count against the limit of a minute.

    Here a prompt has seven tokens, and each output has two chunks of two tokens.
    """
    for left in (89, 78, 67):
        answer = ask(server, "short")
        assert answer.status_code == 200
        assert answer.headers["x-ratelimit-remaining-tokens"] == str(left)
    assert error(ask(server, "short", max_tokens=100)) == (400, "max_tokens", None)
    refused = ask(server, "short", max_tokens=34, n=2)
    assert error(refused) == (429, None, "rate_limit_exceeded")
    assert "100 tokens a minute" in refused.json()["error"]["message"]
    server.pool.failure = Failure(id="", status=429, message="m", retry_after=7.0)
    busy = ask(server, "short", max_tokens=60)  # The worker's queue is full: nothing was used.
    assert (busy.status_code, busy.headers["retry-after"]) == (429, "7")
    assert busy.headers["x-ratelimit-remaining-tokens"] == "67"
    headers = {"authorization": f"Bearer {KEYS[2].key}"}
    chat = server.post("/v1/chat/completions", {"messages": USER}, headers=headers)
    assert error(chat) == (400, "max_tokens", None)  # It may be as long as the context.


def test_prompts_that_are_read_have_no_output(server: Running) -> None:
    headers = {"authorization": f"Bearer {KEYS[2].key}"}
    answer = server.post("/v1/embeddings", {"input": ["ab", "ab"]}, headers=headers)
    assert answer.headers["x-ratelimit-remaining-tokens"] == "96"  # Two chunks of two tokens.
    assert ask(server, "short", max_tokens=0, echo=True, logprobs=1).status_code == 200
    assert 'key_tokens_total{key="short",kind="output"} 0.0' in metrics(server)


def test_one_output_at_a_time(server: Running) -> None:
    server.pool.pause = 0.3
    with ThreadPoolExecutor(3) as clients:
        first = clients.submit(ask, server, "narrow")
        until(lambda: len(server.pool.seen) == 1)
        second = clients.submit(ask, server, "narrow", deadline=20)
        until(lambda: 'key_outputs_waiting{key="narrow"} 1.0' in metrics(server))
        third = ask(server, "narrow")
        assert error(third) == (429, None, "rate_limit_exceeded")
        assert ask(server, "free").status_code == 200  # It need not wait.
        assert first.result().status_code == second.result().status_code == 200
    assert error(ask(server, "narrow", n=2)) == (400, "n", None)
    headers = {"authorization": f"Bearer {KEYS[3].key}"}  # Prompts that are only read take turns.
    read = server.post("/v1/embeddings", {"input": ["a", "b", "c"]}, headers=headers)
    assert read.status_code == 200
    (waited,) = (one for one in server.pool.seen if one.deadline and one.deadline < 20)
    assert waited.deadline < 19.9  # Waiting used up time.


def metrics(server: Running) -> str:
    """Return the page of all metrics, which only an operator's key can see."""
    headers = {"authorization": "Bearer key-of-the-operator"}
    return server.client.get("/metrics", headers=headers).text


def test_a_client_that_leaves_the_queue(server: Running) -> None:
    server.pool.endless, server.pool.pause = True, 0.05
    key = {"authorization": f"Bearer {KEYS[3].key}"}
    body = {"prompt": "a", "stream": True}
    url = "/v1/completions"
    with server.client.stream("POST", url, json=body, headers=key) as first:
        assert first.status_code == 200
        with pytest.raises(httpx.ReadTimeout):
            server.post(url, body, headers=key, timeout=0.2)
        until(lambda: 'key_outputs_waiting{key="narrow"} 0.0' in metrics(server))
    until(lambda: 'key_outputs_running{key="narrow"} 0.0' in metrics(server))


def test_priorities_and_salts(server: Running) -> None:
    assert ask(server, "low").status_code == 200
    assert ask(server, "low", priority=20, cache_salt="a").status_code == 200
    assert [one.priority for one in server.pool.seen] == [10, 20]
    assert error(ask(server, "low", priority=0)) == (400, "priority", None)
    assert error(ask(server, "low", cache_salt="b")) == (400, "cache_salt", None)


def test_metrics_by_key(server: Running) -> None:
    ask(server, "short")
    ask(server, "short", max_tokens=99)
    for _ in range(4):
        ask(server, "few")
    page = metrics(server)
    for line in (
        'key_requests_total{key="short"} 2.0', 'key_tokens_total{key="short",kind="prompt"} 7.0',
        'key_tokens_total{key="short",kind="output"} 4.0', 'key_requests_total{key="few"} 3.0',
        'key_refusals_total{key="few",limit="requests"} 1.0',
        'key_outputs_running{key="few"} 0.0', 'key_requests_total{key="low"} 0.0',
    ):  # fmt: skip
        assert f"paradecode:{line}" in page
    assert not any(one.key in page for one in KEYS)
    assert b"key=" not in Metrics(["m"]).page({}, {})
