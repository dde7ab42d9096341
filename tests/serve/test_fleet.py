"""The front handles replicas on Ray. Here fake replicas answer and fail as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("ray.serve")

from http_server import done, ready
from ray.exceptions import ActorDiedError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError

from paradecode.core.errors import InvalidInput
from paradecode.serve.lines import decode, encode
from paradecode.serve.ray import fleet as module
from paradecode.serve.ray.deploy import Scaling
from paradecode.serve.ray.fleet import Fleet
from paradecode.serve.wire import (
    REQUESTS,
    Accepted,
    Failure,
    Generate,
    OutputChunk,
    PromptInput,
    TokenizedPrompt,
    WorkerStats,
)
from paradecode.serve.workers import RequestFailed

ACCEPTED = Accepted(id="a", prompt_tokens=3)
CHUNK = OutputChunk(id="a", index=0, text="x", tokens=[5], forward=1)
DONE = done("a")
DIED = ActorDiedError()
SLOW = 0.3
NOBODY, BEAT = 5.0, None
Script = list[Any]
"""The actions of a replica for a request: send events, raise an exception, or wait some seconds.

Its name and the name of its arithmetic come first, if they matter.
"""


class Stream:
    """One streamed answer of a fake replica."""

    def __init__(self, script: Script, name: bytes) -> None:
        self.script, self.cancelled, self.named = iter(script), False, False
        self.name = name
        if isinstance(script[0], bytes):
            self.name = next(self.script)
        elif isinstance(script[0], Exception) or script[0] is NOBODY:
            self.named = True

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        if not self.named:
            self.named = True
            return self.name
        for step in self.script:
            if isinstance(step, Exception):
                raise step
            if isinstance(step, float):
                await asyncio.sleep(step)
                continue
            return b"" if step is BEAT else encode(step)
        raise StopAsyncIteration

    def cancel(self) -> None:
        self.cancelled = True


class Handle:
    """A fake deployment. Each request gets the next script."""

    def __init__(self, *scripts: Script, reports: Any = ()) -> None:
        self.scripts, self.reports = list(scripts), reports
        self.streams: list[Stream] = []
        self.asked: list[Generate] = []
        self.keys: list[str] = []
        self.avoided: list[list[str]] = []

    def options(self, stream: bool) -> Handle:
        assert stream
        return self

    @property
    def generate(self) -> Handle:
        return self

    def remote(self, model: str, line: bytes, key: str, avoid: list[str], bits: str) -> Stream:
        self.asked.append(decode(line, REQUESTS))
        self.keys.append(key)
        self.avoided.append(avoid)
        count = len(self.streams)
        self.streams.append(Stream(self.scripts[count], b"replica%d bits" % count))
        return self.streams[-1]

    @property
    def ask(self) -> Any:
        class Ask:
            remote = staticmethod(self.answer)

        return Ask()

    async def answer(self, model: str, line: bytes) -> bytes:
        step = self.scripts.pop(0)[0]
        if isinstance(step, Exception):
            raise step
        return encode(step)

    def broadcast(self, method: str, *given: Any) -> Handle:
        self.given = given
        assert method == ("blocks" if given else "report")
        return self

    async def results_async(self, timeout_s: float, return_exceptions: bool) -> list[Any]:
        if isinstance(self.reports, Exception):
            raise self.reports
        return list(self.reports)


def run(handle: Handle, deadline: float | None = None) -> tuple[list[Any], list[Any]]:
    """Return what the reader of a request gets, and what the metrics are told."""
    told: list[Any] = []
    request = Generate(id="a", prompt=PromptInput(text="abc"), sampling={}, deadline=deadline)

    async def read() -> list[Any]:
        fleet = Fleet(handle, lambda model, event: told.append(event))
        return [event async for event in fleet.submit("m", request)]

    got = asyncio.run(read())
    assert all(stream.cancelled for stream in handle.streams)  # A no-op for those that ended.
    return got, told


def test_events_pass_through() -> None:
    got, told = run(Handle([ACCEPTED, CHUNK, DONE]))
    assert got == [ACCEPTED, CHUNK, DONE]
    assert told == [ACCEPTED, DONE]


@pytest.mark.parametrize("before", [[], [ACCEPTED]])
def test_a_replica_that_dies_before_a_token_is_replaced(before: Script) -> None:
    handle = Handle([b"first bits", *before, SLOW, DIED], [ACCEPTED, CHUNK, DONE])
    got, told = run(handle, deadline=9.0)
    assert got == [ACCEPTED, CHUNK, DONE]  # One Accepted, whoever sent it.
    assert told == [ACCEPTED, DONE]
    first, second = (request.deadline for request in handle.asked)
    assert first is not None
    assert second is not None
    assert second < first - SLOW / 2
    assert handle.keys[0] == handle.keys[1]
    assert handle.avoided == [[], ["first"]]


def part(token: int) -> OutputChunk:
    return replace(CHUNK, tokens=[token], text=chr(token))


def test_another_replica_goes_on_behind_what_was_sent() -> None:
    """A stream survives any number of dying replicas, if each of them sends something first."""
    resumed = replace(ACCEPTED, resumed=True)
    handle = Handle(
        [ACCEPTED, part(65), part(66), DIED], *([resumed, part(67 + i), DIED] for i in range(4)),
        [resumed, part(71), DONE],
    )  # fmt: skip
    got, told = run(handle)
    assert "".join(event.text for event in got[1:-1]) == "ABCDEFG"
    assert told == [ACCEPTED, got[-1]]
    wanted = [None, *([[*range(65, 67 + i)]] for i in range(5))]
    assert [request.resume for request in handle.asked] == wanted
    assert len({request.sampling["seed"] for request in handle.asked}) == 1


def test_a_canvas_begins_anew_and_is_shown_once() -> None:
    handle = Handle([ACCEPTED, part(65), DIED], [ACCEPTED, part(65), part(66), DONE])
    got, _ = run(handle)
    assert "".join(event.text for event in got[1:-1]) == "AB"


def test_a_replica_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE", 0.1)
    beats = [step for _ in range(4) for step in (0.05, BEAT)]
    resumed = replace(ACCEPTED, resumed=True)
    handle = Handle([ACCEPTED, *beats, part(65), SLOW, DONE], [resumed, part(66), DONE])
    got, _ = run(handle)
    assert "".join(event.text for event in got[1:-1]) == "AB"
    assert handle.avoided[1] == ["replica0", "replica0"]


def test_replicas_of_other_bits_do_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.0)
    resumed = replace(ACCEPTED, resumed=True)
    other = [b"other else", NOBODY]
    handle = Handle(
        [ACCEPTED, part(65), DIED], *([other] * 5), [b"same bits", resumed, part(66), DONE]
    )
    got, _ = run(handle)
    assert "".join(event.text for event in got[1:-1]) == "AB"
    assert {*handle.avoided[-1]} == {"replica0", "other"}
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    got, _ = run(Handle([ACCEPTED, part(65), DIED], *([other] * 9999)))
    assert (got[-1].status, got[-1].retry_after is not None) == (503, True)


@pytest.mark.parametrize(
    ("scripts", "sent"),
    [([[BEAT, DIED], [ACCEPTED, DIED], [BEAT, DIED]], [ACCEPTED]),
     ([[ACCEPTED, CHUNK, DIED], *[[BEAT, DIED]] * 3], [ACCEPTED, CHUNK])],
)  # fmt: skip
def test_a_request_that_kills_replicas_is_given_up(scripts: list[Script], sent: Script) -> None:
    got, told = run(Handle(*scripts))
    assert got[:-1] == sent
    assert (got[-1].status, got[-1].message) == (500, "the replica that ran this request died")
    assert told[-1] is got[-1]


def test_replicas_that_die_before_they_have_it_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "PAUSE", 0.0)
    got, _ = run(Handle(*[[DIED]] * 5, [ACCEPTED, CHUNK, DONE]))
    assert got == [ACCEPTED, CHUNK, DONE]
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    got, _ = run(Handle(*[[DIED]] * 99999))
    assert got[-1].status == 503


@pytest.mark.parametrize(
    ("error", "status"),
    [(BackPressureError(num_queued_requests=9, max_queued_requests=9), 429),
     (DeploymentUnavailableError(module), 503)],
)  # fmt: skip
def test_what_ray_refuses_is_told_as_the_api_does(error: Exception, status: int) -> None:
    (failure,), _ = run(Handle([error]))
    assert failure.status == status
    assert failure.retry_after is not None


def test_no_replica_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", 0.05)
    (failure,), _ = run(Handle([NOBODY]))
    assert failure.status == 503


def test_a_reader_that_leaves_cancels_the_request() -> None:
    handle = Handle([ACCEPTED, CHUNK, CHUNK, DONE])

    async def leave() -> None:
        fleet = Fleet(handle, lambda model, event: None)
        request = Generate(id="a", prompt=PromptInput(text="abc"), sampling={})
        async with aclosing(fleet.submit("m", request)) as events:
            await anext(events)
            assert not handle.streams[0].cancelled

    asyncio.run(leave())
    assert handle.streams[0].cancelled


def test_questions() -> None:
    tokens = TokenizedPrompt(id="question-0", tokens=[1], texts=["x"])
    failed = Failure(id="q", status=400, message="no")

    async def ask(step: Any) -> Any:
        fleet = Fleet(Handle([step]), lambda model, event: None)
        return await fleet.tokenize("m", PromptInput(text="x"))

    assert asyncio.run(ask(tokens)) == tokens
    for step, status in ((failed, 400), (DIED, 500), (DeploymentUnavailableError(module), 503)):
        with pytest.raises(RequestFailed) as error:
            asyncio.run(ask(step))
        assert error.value.failure.status == status


def stats(running: int) -> WorkerStats:
    return WorkerStats(
        id="s", running=running, waiting=0, waiting_tokens=0, batch=4, pages=1, held_pages=0,
        idle_pages=0, forwards=2, steps=2, refused=0, memory_bytes=1,
    )  # fmt: skip


def report(running: int, healthy: bool = True) -> dict[str, Any]:
    return {
        "healthy": healthy, "ready": {"m": encode(ready("m"))}, "restarts": {"m": 2},
        "stats": {"m": [encode(stats(running))]},
    }  # fmt: skip


def look(reports: Any) -> tuple[Fleet, Any]:
    fleet = Fleet(Handle(reports=reports), lambda model, event: None)
    return fleet, asyncio.run(fleet.stats())


def test_reports_of_all_replicas_are_put_together() -> None:
    fleet, found = look([report(1), DIED, report(5, healthy=False)])
    assert found == {"m": [stats(1), stats(5)]}
    assert (fleet.healthy, fleet.restarts, fleet.ready) == (True, {"m": 4}, {"m": ready("m")})


@pytest.mark.parametrize("reports", [[], [DIED], DeploymentUnavailableError(module)])
def test_without_an_answer_the_fleet_is_not_healthy(reports: Any) -> None:
    fleet, found = look(reports)
    assert (fleet.healthy, found) == (False, {})


def test_a_slow_answer_leaves_what_was_known(monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Handle(reports=[report(1)])
    fleet = Fleet(handle, lambda model, event: None)
    known = asyncio.run(fleet.stats())
    handle.reports = TimeoutError()
    assert asyncio.run(fleet.stats()) == known
    assert fleet.healthy
    monkeypatch.setattr(module, "LATELY", 0.0)  # But not for ever.
    assert not fleet.healthy


@pytest.mark.parametrize(
    "settings",
    [{"replicas": 0}, {"replicas": 3, "most": 2}, {"most": 9999}, {"cpus": -1}, {"ongoing": 0}],
)
def test_scaling_out_of_range(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Scaling(**settings)
