"""The load client against servers that answer well, late, in bundles, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from fake_openai import DELAY, TOKENS, FakeServer
from paradecode.core.errors import InvalidInput
from paradecode.measure.suites.load.asks import Ask
from paradecode.measure.suites.load.drive import drive
from paradecode.measure.suites.load.plan import Endpoint, LoadPlan, OfferedLoad
from paradecode.measure.suites.load.results import Phase, StreamedAnswer

ASKS = [Ask(f"ask-{number}", f"Question {number}?", 16 + number) for number in range(5)]


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    opened = FakeServer()
    try:
        yield opened
    finally:
        opened.close()


def run(server: FakeServer, *behaviours: str, key: str | None = None, **plan: Any) -> list[Phase]:
    endpoints = tuple(Endpoint(name, f"{server.url}/{name}/v1") for name in behaviours)
    settings = {"requests": 4, "rounds": 1, "warmup": 0, "timeout": 20.0, **plan}
    server.seen.clear()
    server.most_under_way = 0
    return asyncio.run(drive(LoadPlan(endpoints=endpoints, **settings), ASKS, key))[1]


def answers(server: FakeServer, behaviour: str, **plan: Any) -> list[StreamedAnswer]:
    (phase,) = run(server, behaviour, **plan)
    return list(phase.answers)


def test_every_request_is_timed_and_counted(server: FakeServer) -> None:
    found = answers(server, "steady")
    assert len({answer.ask for answer in found}) == 4
    for answer in found:
        assert answer.error == ""
        assert answer.text == " word" * TOKENS
        assert (answer.tokens, answer.chunks, answer.finish_reason) == (TOKENS, TOKENS, "stop")
        assert answer.first is not None
        assert answer.last is not None
        assert DELAY <= answer.first < answer.last <= answer.end
        assert answer.per_token is not None
        assert answer.per_token >= 0.9 * DELAY  # Clocks of the two threads may differ a little.
        assert answer.longest_gap >= answer.per_token


@pytest.mark.parametrize(
    ("behaviour", "chunks", "timed"), [("bundled", 3, True), ("whole", 1, False)]
)
def test_chunks_are_not_tokens(
    server: FakeServer, behaviour: str, chunks: int, timed: bool
) -> None:
    """All tokens after the first share the time to the last; one piece alone times nothing."""
    for answer in answers(server, behaviour):
        assert (answer.tokens, answer.chunks) == (TOKENS, chunks)
        if timed:
            assert answer.first is not None
            assert answer.last is not None
            span = answer.last - answer.first
            assert answer.per_token == pytest.approx(span / (TOKENS - 1))
        else:
            assert answer.per_token is None


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        ("busy", "http 503"), ("cut", "stream"), ("garbage", "stream"), ("fails", "server"),
        ("uncounted", "usage"), ("silent", "timeout"),
    ],
)  # fmt: skip
def test_failures_are_kept_and_named(server: FakeServer, behaviour: str, kind: str) -> None:
    found = answers(server, behaviour, timeout=0.2 if behaviour == "silent" else 20.0)
    assert [answer.error.partition(":")[0] for answer in found] == [kind] * 4
    assert all(answer.end > 0 for answer in found)


def test_a_server_that_fails_now_and_then(server: FakeServer) -> None:
    found = answers(server, "flaky", requests=6)
    assert sum(bool(answer.error) for answer in found) == 2


def test_a_connection_that_is_refused(server: FakeServer) -> None:
    nowhere = Endpoint("nowhere", "http://127.0.0.1:9/v1", model="m")
    plan = LoadPlan(endpoints=(nowhere,), requests=2, rounds=1, warmup=0)
    (phase,) = asyncio.run(drive(plan, ASKS))[1]
    assert all(answer.error.startswith("connection: ") for answer in phase.answers)
    with pytest.raises(InvalidInput, match=r"--endpoint nowhere.*warm-up"):
        asyncio.run(drive(LoadPlan(endpoints=(nowhere,), requests=2, rounds=1), ASKS))


@pytest.mark.parametrize(("behaviour", "fix"), [("locked", "401"), ("empty", "--model")])
def test_a_server_that_cannot_be_asked(server: FakeServer, behaviour: str, fix: str) -> None:
    with pytest.raises(InvalidInput, match=fix):
        run(server, behaviour)


def test_a_closed_loop_keeps_its_clients_busy(server: FakeServer) -> None:
    for clients in (1, 3):
        found = answers(server, "steady", loads=(OfferedLoad(clients=clients),), requests=7)
        assert server.most_under_way == clients
        spans = sorted((answer.start, answer.start + answer.end) for answer in found)
        for start, end in spans:  # Never more at a time than there are clients.
            assert sum(a < end and start < b for a, b in spans) <= 2 * clients - 1


def test_an_open_loop_does_not_wait_for_answers(server: FakeServer) -> None:
    """Requests are due at 200 a second, an answer takes 0.1 s: many are under way at once."""
    load = OfferedLoad(rate=200.0)
    found = answers(server, "steady", loads=(load,), arrivals="constant", requests=12)
    assert sorted(answer.start for answer in found) == pytest.approx([n / 200 for n in range(12)])
    assert server.most_under_way > 4
    assert all(answer.late >= 0 for answer in found)
    for answer in found:  # What the client was late is part of the latency.
        assert answer.first is not None
        assert answer.first >= DELAY + answer.late


def test_endpoints_take_turns_and_get_the_same(server: FakeServer) -> None:
    loads = (OfferedLoad(clients=1), OfferedLoad(clients=2))
    phases = run(server, "quick", "brisk", loads=loads, rounds=4, requests=3, warmup=1)
    order = [(phase.round, str(phase.load)) for phase in phases]
    assert order == sorted(order)
    first = [phases[at].endpoint for at in range(0, len(phases), 2)]
    assert set(first) == {"quick", "brisk"}  # Who begins changes.
    for one, other in zip(phases[::2], phases[1::2]):
        assert {one.endpoint, other.endpoint} == {"quick", "brisk"}
        assert sorted(a.ask for a in one.answers) == sorted(a.ask for a in other.answers)
    assert len(server.seen) == len(phases) * (3 + 1)  # With the warm-up.
    again = run(server, "quick", "brisk", loads=loads, rounds=4, requests=3, warmup=1)
    assert [p.endpoint for p in again] == [p.endpoint for p in phases]


def test_what_is_sent(server: FakeServer) -> None:
    endpoint = Endpoint(
        "steady", f"{server.url}/steady/v1", body={"temperature": 0.5, "speculative": "none"}
    )
    plan = LoadPlan(endpoints=(endpoint,), requests=1, rounds=1, warmup=0)
    server.seen.clear()
    asyncio.run(drive(plan, [Ask("a", "Hello?", 9, system="Be brief.")], "secret-key"))
    (body,) = server.seen
    assert body["model"] == "model-of-steady"
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"},
    ]  # fmt: skip
    assert (body["max_tokens"], body["temperature"], body["speculative"]) == (9, 0.5, "none")
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert "Bearer secret-key" in server.keys


def test_completions_without_usage(server: FakeServer) -> None:
    for answer in answers(server, "steady", api="completions", count="tokenizer"):
        assert answer.text == " word" * TOKENS
        assert answer.tokens is None  # Counted afterwards, from the text.
    assert all("stream_options" not in body and "prompt" in body for body in server.seen)
