"""Limits of a key: how much a minute allows, who waits, and when there is room."""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest

pytest.importorskip("fastapi")

from paradecode.serve.errors import ApiError
from paradecode.serve.keys import KeyLimits
from paradecode.serve.limits import MINUTE, Account, RateWindow, Stay


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def account(clock: Clock, **limits: Any) -> Account:
    return Account("alice", KeyLimits(**limits), "tenant", clock)


def test_no_minute_holds_more_than_the_limit() -> None:
    """The window agrees with its definition on random traffic, and ``wait`` is exact."""
    clock, draw = Clock(), random.Random(1)
    window, times = RateWindow(10, clock), []
    for _ in range(3000):
        clock.now += draw.expovariate(0.5)
        amount = draw.randint(1, 4)
        recent = sum(n for at, n in times if at + MINUTE > clock.now)
        wait = window.wait(amount)
        assert (wait == 0) == (recent + amount <= 10)
        assert window.left == 10 - recent
        if wait:
            clock.now += wait - 1e-6
            assert window.wait(amount) > 0  # Not earlier than was said ...
            clock.now += 2e-6
            assert window.wait(amount) == 0  # ... and no later.
        if draw.random() < 0.9:
            window.add(amount)
            times.append((clock.now, amount))
    assert len(times) > 300


def test_the_reset_is_when_all_is_free() -> None:
    clock = Clock()
    window = RateWindow(3, clock)
    assert window.reset() == 0
    window.add(1)
    clock.now += 20
    window.add(1)
    assert window.reset() == pytest.approx(60)
    clock.now += 50
    assert (window.left, window.reset()) == (2, pytest.approx(10))


def test_a_request_too_many_is_told_when_to_come_back() -> None:
    clock = Clock()
    one = account(clock, requests_per_minute=2)
    one.request()
    clock.now += 12.5
    one.request()
    with pytest.raises(ApiError) as refused:
        one.request()
    error = refused.value
    assert (error.status, error.code, error.retry_after) == (429, "rate_limit_exceeded", 47.5)
    assert error.response().headers["retry-after"] == "48"
    assert error.response().headers["retry-after-ms"] == "47500"
    assert (one.requests, one.refused["requests"]) == (2, 1)
    assert dict(one.headers()) == {
        b"x-ratelimit-limit-requests": b"2", b"x-ratelimit-remaining-requests": b"0",
        b"x-ratelimit-reset-requests": b"60.000s",
    }  # fmt: skip
    clock.now += 47.5
    one.request()


def test_no_limits_say_nothing() -> None:
    one = account(Clock())
    for _ in range(100):
        one.request()
    assert one.headers() == []


async def begun(one: Account, stack: AsyncExitStack, outputs: int = 1, **given: Any) -> Stay:
    asked = {"prompts": [10], "outputs": outputs, "most": 20, "priority": 0, "seconds": 5.0}
    return await stack.enter_async_context(one.stay(**{**asked, **given}))


def test_tokens_are_reserved_then_counted() -> None:
    clock = Clock()
    one = account(clock, tokens_per_minute=100)

    async def run() -> None:
        async with AsyncExitStack() as first:
            stay = await begun(one, first, outputs=2)
            assert one._tokens is not None
            assert one._tokens.left == 50  # 10 for the prompt, twice 20.
            stay.accepted(0, 15)  # It was longer than it looked.
            assert one._tokens.left == 45
            clock.now += 10
            with pytest.raises(ApiError) as refused:
                async with AsyncExitStack() as second:
                    await begun(one, second, most=40)
            assert (refused.value.status, refused.value.retry_after) == (429, 50)
            stay.output = 7
        assert one._tokens.left == 78
        assert (one.prompt_tokens, one.output_tokens) == (15, 7)
        async with AsyncExitStack() as third:  # What is refused by a worker costs nothing.
            await begun(one, third)
            assert one._tokens.left == 48
        assert one._tokens.left == 78
        with pytest.raises(ApiError) as never:
            async with AsyncExitStack() as fourth:
                await begun(one, fourth, most=91)
        assert (never.value.status, never.value.param) == (400, "max_tokens")

    asyncio.run(run())


async def settled() -> None:
    """Let every task run as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_outputs_wait_for_one_another_by_priority() -> None:
    one = account(Clock(), sequences=2, queue=3)

    async def run() -> None:
        order: list[str] = []

        async def ask(name: str, priority: int, ends: asyncio.Event, outputs: int = 1) -> None:
            async with AsyncExitStack() as stack:
                await begun(one, stack, outputs, priority=priority)
                order.append(name)
                await ends.wait()

        ends = {name: asyncio.Event() for name in "abcde"}
        tasks = [
            asyncio.create_task(ask(name, priority, ends[name], outputs))
            for name, priority, outputs in [("a", 0, 1), ("b", 0, 1), ("c", 5, 1), ("d", -5, 2)]
        ]
        await asyncio.sleep(0)
        assert (order, one.running, one.waiting) == (["a", "b"], 2, 3)
        with pytest.raises(ApiError) as full:
            await ask("e", 0, ends["e"])
        assert full.value.status == 429
        assert full.value.retry_after == pytest.approx(0.5)  # One second each, two at a time.
        with pytest.raises(ApiError) as never:
            await ask("e", 0, ends["e"], outputs=3)
        assert (never.value.status, never.value.param) == (400, "n")
        ends["a"].set()
        await settled()
        assert order == ["a", "b"]  # The next one needs both places.
        ends["b"].set()
        await settled()
        assert order == ["a", "b", "d"]
        ends["d"].set()
        ends["c"].set()
        await asyncio.gather(*tasks)
        assert (order[3], one.running, one.waiting) == ("c", 0, 0)

    asyncio.run(run())


def test_who_leaves_the_queue_holds_nothing() -> None:
    """A request that leaves the queue holds no place and no tokens.

    It leaves because it is cancelled in the queue or just after it, or because it waited too long.
    """
    one = account(Clock(), sequences=1, tokens_per_minute=1000)

    async def run() -> None:
        async def ask() -> None:
            async with AsyncExitStack() as stack:
                await begun(one, stack)

        async with AsyncExitStack() as stack:
            await begun(one, stack)
            waits = asyncio.create_task(ask())
            await asyncio.sleep(0)
            waits.cancel()
            await asyncio.gather(waits, return_exceptions=True)
            assert (one.running, one.waiting) == (1, 0)
            with pytest.raises(ApiError) as late:
                async with AsyncExitStack() as second:
                    await begun(one, second, seconds=0.01)
            assert late.value.status == 408
            just = asyncio.create_task(ask())
            await asyncio.sleep(0)
        just.cancel()  # Its place was given, but it has not run since.
        await asyncio.gather(just, return_exceptions=True)
        assert (one.running, one.waiting) == (0, 0)
        assert one._tokens is not None
        assert one._tokens.left == 1000
        await ask()

    asyncio.run(run())


def test_waiting_tokens_count_from_the_moment_they_run() -> None:
    clock = Clock()
    one = account(clock, sequences=1, tokens_per_minute=100)

    async def run() -> None:
        stay: list[Stay] = []

        async def ask() -> None:
            async with AsyncExitStack() as stack:
                stay.append(await begun(one, stack))
                stay[0].accepted(0, 10)
                stay[0].output = 20

        async with AsyncExitStack() as stack:
            await begun(one, stack)
            waits = asyncio.create_task(ask())
            await asyncio.sleep(0)
            clock.now += 70
        await waits
        clock.now += 30
        assert one._tokens is not None
        assert one._tokens.left == 70

    asyncio.run(run())


def test_priorities_and_salts() -> None:
    one = account(Clock(), priorities=[5, 10], salts=["a"])
    assert [one.priority(asked) for asked in (None, 5, 10)] == [5, 5, 10]
    assert account(Clock(), priorities=[-9, -3]).priority(None) == -3
    for asked in (4, 11, 0):
        with pytest.raises(ApiError) as refused:
            one.priority(asked)
        assert (refused.value.status, refused.value.param) == (400, "priority")
    one.check_salt(None)
    one.check_salt("a")
    with pytest.raises(ApiError) as other:
        one.check_salt("b")
    assert (other.value.status, other.value.param) == (400, "cache_salt")
    account(Clock()).check_salt("anything")
