"""Tests the load client with servers that answer well, late, in large chunks, or not at all."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("aiohttp")

from fake_openai import DELAY, TOKENS, FakeServer
from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.prompts import Conversation
from paradecode_lab.measure.results import Record, StreamedAnswer
from paradecode_lab.measure.suites.load.client import ask_once, open_session
from paradecode_lab.measure.suites.load.plan import Endpoint, LoadPlan, OfferedLoad
from paradecode_lab.measure.suites.load.suite import measure
from paradecode_lab.measure.suites.load.summary import phase_of, streamed
from patience import PATIENCE

ASKS = [Conversation(f"ask-{n}", "kind", (f"Question {n}?",), 16 + n) for n in range(5)]
Phases = dict[tuple[str, str, int], list[Record]]


def run(server, *behaviours, journal=None, wanted=0, **plan):
    """Run a plan, and return (endpoint, load, round) -> its records."""
    endpoints = tuple(Endpoint(name, f"{server.url}/{name}/v1") for name in behaviours)
    settings = {"requests": 4, "rounds": 1, "warmup": 0, "timeout": PATIENCE, **plan}
    server.seen.clear()
    server.most_under_way, server.wanted = 0, wanted
    phases: Phases = {}
    for record in measure(LoadPlan(endpoints=endpoints, **settings), ASKS, journal=journal).records:
        phases.setdefault(phase_of(record), []).append(record)
    return phases


def records(server: FakeServer, behaviour: str, **plan: Any) -> list[Record]:
    (found,) = run(server, behaviour, **plan).values()
    return found


def answers(server: FakeServer, behaviour: str, **plan: Any) -> list[StreamedAnswer]:
    return [streamed(record) for record in records(server, behaviour, **plan)]


def test_every_request_is_timed_and_counted(server: FakeServer) -> None:
    found = records(server, "steady")
    assert len({record.item for record in found}) == 4
    for record in found:
        answer = streamed(record)
        assert (record.error, record.text) == ("", "")  # The texts of answers are not kept.
        assert (answer.tokens, answer.chunks, answer.finish_reason) == (TOKENS, TOKENS, "stop")
        assert answer.first is not None
        assert answer.last is not None
        assert DELAY <= answer.first <= answer.last <= answer.end
        assert answer.end >= TOKENS * DELAY
        assert answer.per_token == pytest.approx((answer.last - answer.first) / (TOKENS - 1))
        assert answer.longest_gap >= answer.per_token


@pytest.mark.parametrize(
    ("behaviour", "chunks", "timed"), [("bundled", 3, True), ("whole", 1, False)]
)
def test_chunks_are_not_tokens(server, behaviour, chunks, timed):
    """The time per token counts all tokens after the first text; a single chunk gives no time."""
    for answer in answers(server, behaviour):
        assert (answer.tokens, answer.chunks) == (TOKENS, chunks)
        if timed:
            assert answer.first is not None
            assert answer.last is not None
            span = answer.last - answer.first
            assert answer.per_token == pytest.approx(span / (TOKENS - 1))
        else:
            assert answer.per_token is None


@pytest.mark.parametrize(("behaviour", "kind"), [
    ("busy", "http 503"), ("cut", "stream"), ("garbage", "stream"), ("fails", "server"),
    ("uncounted", "usage"), ("silent", "timeout"),
])  # fmt: skip
def test_failures_are_kept_and_named(server: FakeServer, behaviour: str, kind: str) -> None:
    found = records(server, behaviour, timeout=0.2 if behaviour == "silent" else PATIENCE)
    assert [record.error.partition(":")[0] for record in found] == [kind] * 4
    assert all(streamed(record).end > 0 for record in found)


def test_a_server_that_fails_now_and_then(server: FakeServer) -> None:
    assert sum(bool(record.error) for record in records(server, "flaky", requests=6)) == 2


def test_a_connection_that_is_refused(server: FakeServer) -> None:
    nowhere = Endpoint("nowhere", "http://127.0.0.1:9/v1", model="m")
    plan = LoadPlan(endpoints=(nowhere,), requests=2, rounds=1, warmup=0)
    assert all(one.error.startswith("connection: ") for one in measure(plan, ASKS).records)
    with pytest.raises(InvalidInput, match=r"--endpoint nowhere.*warm-up"):
        measure(LoadPlan(endpoints=(nowhere,), requests=2, rounds=1), ASKS)


@pytest.mark.parametrize(("behaviour", "fix"), [("locked", "401"), ("empty", "--model")])
def test_a_server_that_cannot_be_asked(server: FakeServer, behaviour: str, fix: str) -> None:
    with pytest.raises(InvalidInput, match=fix):
        run(server, behaviour)


def test_a_closed_loop_keeps_its_clients_busy(server: FakeServer) -> None:
    for clients in (1, 3):
        found = answers(
            server, "steady", wanted=clients, loads=(OfferedLoad(clients=clients),), requests=7
        )
        assert server.most_under_way == clients
        spans = sorted((answer.start, answer.start + answer.end) for answer in found)
        for start, end in spans:  # There are never more requests at once than clients.
            assert sum(a < end and start < b for a, b in spans) <= 2 * clients - 1


def test_an_open_loop_does_not_wait_for_answers(server: FakeServer) -> None:
    """An open loop sends requests without waiting: the server answers when five of them wait."""
    load = OfferedLoad(rate=200.0)
    found = answers(server, "steady", wanted=5, loads=(load,), arrivals="constant", requests=12)
    assert sorted(answer.start for answer in found) == pytest.approx([n / 200 for n in range(12)])
    assert all(answer.late >= 0 for answer in found)
    for answer in found:  # A delay of the client counts as latency.
        assert answer.first is not None
        assert answer.first >= DELAY + answer.late


def test_endpoints_take_turns_and_get_the_same(server: FakeServer) -> None:
    loads = (OfferedLoad(clients=1), OfferedLoad(clients=2))
    phases = run(server, "quick", "brisk", loads=loads, rounds=4, requests=3, warmup=1)
    order = [(number, load) for _, load, number in phases]
    assert order == sorted(order)
    names = [endpoint for endpoint, _, _ in phases]
    assert set(names[::2]) == {"quick", "brisk"}  # The first endpoint changes from round to round.
    both = list(phases.values())
    for one, other in zip(both[::2], both[1::2]):
        assert {one[0].engine, other[0].engine} == {"quick", "brisk"}
        assert sorted(r.item for r in one) == sorted(r.item for r in other)
    assert len(server.seen) == len(phases) * (3 + -(-80 // TOKENS))  # This includes the warm-up.
    again = run(server, "quick", "brisk", loads=loads, rounds=4, requests=3, warmup=1)
    assert list(again) == list(phases)


def test_an_interrupted_run_goes_on(server: FakeServer, tmp_path: Path) -> None:
    """After a kill in the middle of a round, only that round's requests are sent again."""
    journal = tmp_path / "load.jsonl"
    whole = run(server, "quick", "brisk", journal=journal, rounds=2)
    assert len(server.seen) == 2 * 2 * 4
    lines = journal.read_text("utf-8").splitlines(keepends=True)
    kept = len(lines) - 6  # One round of four requests is lost, and half of another one.
    journal.write_text("".join(lines[:kept]) + lines[kept][:20], "utf-8")
    again = run(server, "quick", "brisk", journal=journal, rounds=2)
    assert len(server.seen) == 2 * 4
    assert again.keys() == whole.keys()
    for phase, found in again.items():
        assert [r.item for r in found] == [r.item for r in whole[phase]]
        assert [r.unit for r in found] == [0, 1, 2, 3]
    first = next(iter(whole))
    ends = [[streamed(record).end for record in found[first]] for found in (again, whole)]
    assert ends[0] == pytest.approx(ends[1], abs=1e-6)
    # Rounds and loads may be added. The requests and the endpoints' models may not change.
    run(server, "quick", journal=journal, rounds=3)
    assert len(server.seen) == 4
    with pytest.raises(InvalidInput, match="requests 4"):
        run(server, "quick", journal=journal, requests=5)
    other = Endpoint("quick", f"{server.url}/brisk/v1")
    plan = LoadPlan(endpoints=(other,), requests=4, rounds=1, warmup=0, timeout=PATIENCE)
    with pytest.raises(InvalidInput, match="model-of-quick"):
        measure(plan, ASKS, journal=journal)


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_the_text_that_is_read(server: FakeServer, api: str) -> None:
    endpoint = Endpoint("steady", f"{server.url}/steady/v1", model="m")
    plan = LoadPlan(endpoints=(endpoint,), api=api)

    async def once() -> Record:
        async with open_session(plan, None) as session:
            return await ask_once(session, endpoint, ASKS[0], plan, "c=1", time.perf_counter())

    assert asyncio.run(once()).text == " word" * TOKENS


def test_what_is_sent(server: FakeServer) -> None:
    endpoint = Endpoint(
        "steady", f"{server.url}/steady/v1", body={"temperature": 0.5, "speculative": "none"}
    )
    plan = LoadPlan(endpoints=(endpoint,), requests=1, rounds=1, warmup=0)
    server.seen.clear()
    measure(plan, [Conversation("a", "b", ("Hello?",), 9, system="Be brief.")], "secret-key")
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
    found = answers(server, "uncounted", api="completions", count="tokenizer")
    assert [answer.tokens for answer in found] == [TOKENS] * 4  # The text " word" is one token.
    assert all("stream_options" not in body and "prompt" in body for body in server.seen)
