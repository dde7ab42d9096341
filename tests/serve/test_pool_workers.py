"""The pool with real workers starts, drains, bounds slow readers, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest
from looping import ask
from pools import SEEN, all_of, idle, last_of, opened, run

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode.serve import replica as replicas
from paradecode.serve import spare as spares
from paradecode.serve.buffer import Bounds
from paradecode.serve.pool import Pool
from paradecode.serve.wire import Accepted, Done, Failure, Generate, OutputChunk, PromptInput
from paradecode.serve.workers import RequestFailed


@pytest.fixture(autouse=True)
def restarted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "FIRST_PAUSE", 0.05)


def test_mixed_methods_equal_the_library(folder: str) -> None:
    methods: list[dict[str, Any]] = [
        {"decoder": "none"}, {}, {"decoder": "suffix(budget=fixed)"},
        {"temperature": 0.8, "seed": 3}, {"temperature": 0.8, "seed": 3, "decoder": "none"},
        {"n": 2, "temperature": 1.0, "seed": 9},
    ]  # fmt: skip
    wanted = [
        ask(f"r{i}", "abcab" * (1 + i % 3), ignore_eos=True, max_tokens=30, **settings)
        for i, settings in enumerate(methods * 3)
    ]

    async def test() -> None:
        async with opened(folder, 2) as pool:
            assert pool.healthy
            assert pool.ready["m"].decoder == "prompt-lookup"
            pids = [replica.pid for replica in pool._replicas["m"]]
            # A terminal sends Ctrl-C to all processes of its session, so workers must have their
            # own.
            assert all(pid is not None and os.getsid(pid) != os.getsid(0) for pid in pids)
            found = await asyncio.gather(*(all_of(pool, request) for request in wanted))
            tokens = (await pool.tokenize("m", PromptInput(text="hi"))).tokens
            assert (await pool.detokenize("m", tokens)).text == "hi"
            with pytest.raises(RequestFailed) as caught:
                await pool.tokenize("m", PromptInput(text="\ud800"))
            assert caught.value.failure.status == 400
            await idle(pool)
            served = [replica.served for replica in pool._replicas["m"]]
            assert min(served) > 6, "both workers must have had their share"
        with LLM(folder, threads=1) as llm:
            for request, (output, last) in zip(wanted, found):
                assert isinstance(last, Done)
                own = llm.complete(str(request.prompt.text), **request.sampling, decoder="greedy")
                assert output == own.token_ids
        assert SEEN == {"Accepted": 18, "Done": 21}

    run(test)


def test_what_is_cut_by_the_end_is_told(folder: str) -> None:
    async def test() -> None:
        async with opened(folder) as pool:
            stream = pool.submit("m", ask("cut", ignore_eos=True, max_tokens=3000))
            assert isinstance(await anext(stream), Accepted)
            pool.stop()
            end = await last_of(stream)
            assert isinstance(end, Failure)
            assert (end.status, end.message) == (503, "the server is stopping")

    run(test)


def test_leaving_cancels(folder: str) -> None:
    async def test() -> None:
        async with opened(folder) as pool:
            async with aclosing(pool.submit("m", ask("a", ignore_eos=True, max_tokens=4000))) as a:
                async for event in a:
                    if isinstance(event, OutputChunk):
                        break

            async def wait_for_ever() -> None:
                request = ask("b", ignore_eos=True, max_tokens=4000)
                async for _ in pool.submit("m", request):
                    await asyncio.sleep(0)

            task = asyncio.create_task(wait_for_ever())
            while SEEN["Accepted"] < 2:
                await asyncio.sleep(0.01)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await idle(pool)
            assert not pool._live
            assert not pool._replicas["m"][0].calls
        assert SEEN["Done"] == 2  # The observer hears of those that nobody waits for, too.

    run(test)


def test_a_slow_reader_is_cancelled(folder: str) -> None:
    async def test() -> None:
        bounds = Bounds(full=2_000, most=5_000, patience=60.0)
        async with opened(folder, bounds=bounds) as pool:
            slow = pool.submit("m", ask("slow", ignore_eos=True, max_tokens=1500))
            assert isinstance(await anext(slow), Accepted)
            tokens, last = await all_of(pool, ask("fast", ignore_eos=True, max_tokens=300))
            assert isinstance(last, Done)
            assert len(tokens) == 300
            await idle(pool)
            rest = [event async for event in slow]
            assert [type(event) for event in rest] == [Failure]
            assert rest[0].status == 503  # type: ignore[union-attr]

    run(test)


def test_refusals(folder: str) -> None:
    async def test() -> None:
        async with opened(folder, limits={"batch": 1}, queue_requests=1) as pool:
            (missing,) = [event async for event in pool.submit("other", ask("a"))]
            assert isinstance(missing, Failure)
            assert (missing.status, missing.param) == (404, "model")
            first = pool.submit("m", ask("a", ignore_eos=True, max_tokens=4000))
            second = pool.submit("m", ask("b", ignore_eos=True, max_tokens=4000))
            for one in (first, second):
                await anext(one)
            end = (await all_of(pool, ask("c")))[1]
            assert (end.status, end.type) == (429, "rate_limit_error")
            assert end.retry_after >= 1
            end = (await all_of(pool, ask("a")))[1]
            assert (end.status, end.param) == (400, "id")
            end = (await all_of(pool, ask("d", max_tokens=-1)))[1]
            assert (end.status, end.param) == (400, "max_tokens")
            huge = Generate(
                id="e", prompt=PromptInput(text="a"), sampling={"stop": ["x" * (1 << 25)]}
            )
            assert (await all_of(pool, huge))[1].status == 413
            for one in (first, second):
                await one.aclose()
            await idle(pool)

    with pytest.raises(InvalidInput, match="models"):
        Pool([])
    run(test)


def test_draining(folder: str) -> None:
    async def test() -> None:
        async with opened(folder, 2) as pool:
            tasks = [
                asyncio.create_task(all_of(pool, ask(f"r{i}", ignore_eos=True, max_tokens=500)))
                for i in range(6)
            ]
            while sum(one.served for one in pool._replicas["m"]) < 6:
                await asyncio.sleep(0.01)
            draining = asyncio.create_task(pool.drain(120))
            await asyncio.sleep(0)
            refused = (await all_of(pool, ask("late")))[1]
            assert (refused.status, refused.type) == (503, "overloaded_error")
            for tokens, last in await asyncio.gather(*tasks):
                assert isinstance(last, Done)
                assert len(tokens) == 500
            assert await draining
            assert not pool.healthy

    run(test)


def test_a_worker_that_is_told_to_stop_is_replaced(folder: str) -> None:
    async def test() -> None:
        async with opened(folder) as pool:
            old = pool._replicas["m"][0].pid
            running = asyncio.create_task(
                all_of(pool, ask("old", ignore_eos=True, max_tokens=1200))
            )
            while SEEN["Accepted"] == 0:
                await asyncio.sleep(0.01)
            assert old is not None
            os.kill(old, signal.SIGTERM)
            while pool._replicas["m"][0].open:
                await asyncio.sleep(0.01)
            tokens, last = await all_of(pool, ask("new", ignore_eos=True, max_tokens=5))
            assert isinstance(last, Done)
            assert len(tokens) == 5
            assert len((await running)[0]) == 1200
            assert pool._replicas["m"][0].pid != old
        assert not {"503", "500"} & SEEN.keys()

    run(test)


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    async def test() -> None:
        with pytest.raises(InvalidInput, match="no such file"):
            async with opened(str(tmp_path / "nowhere.gguf"), 2):
                pass

    run(test)


BUSY = """
import sys, json, time
sys.stdin.readline()
COUNTS = ("running", "waiting", "waiting_tokens", "batch", "pages", "held_pages", "idle_pages",
          "forwards", "steps", "refused", "memory_bytes")
STATS = {"kind": "stats", "id": "worker", **dict.fromkeys(COUNTS, 0)}
asked = 0
def say(x): sys.stdout.write(x + "\\n"); sys.stdout.flush()
say('{"kind":"ready","model":"m","families":[],"context_length":9,"vocab_size":9,'
    '"decoder":"x","draft_model":null,"chat":false}')
for line in sys.stdin:
    body = json.loads(line)
    asked = asked + 1 if body["kind"] == "stats" else 0
    if body["kind"] == "stats": say(json.dumps(STATS))
    if asked == 12: say('{"kind":"error","id":"r","status":400,"message":"end"}')
"""


def test_a_worker_that_is_busy_and_answers_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is not killed while its engine answers, even if no token comes for long."""
    monkeypatch.setattr(spares, "COMMAND", (spares.COMMAND[0], "-c", BUSY))

    async def test() -> None:
        async with opened(None, hang_seconds=1.6) as pool:
            end = (await all_of(pool, ask("r")))[1]
            assert (end.status, end.message) == (400, "end")
            assert pool.restarts == {"m": 0}

    run(test)


LIAR = """
import sys, json
sys.stdin.readline()
def say(x): sys.stdout.write(x + "\\n"); sys.stdout.flush()
say('{"kind":"ready","model":"m","families":[],"context_length":9,"vocab_size":9,'
    '"decoder":"x","draft_model":null,"chat":false}')
for line in sys.stdin:
    body = json.loads(line)
    id = body.get("id")
    say("no json"); say('{"kind":"ready"}'); say('[1]'); say("")
    say('{"kind":"done","id":"ghost","index":0}')
    say('{"kind":"accepted","id":"ghost","prompt_tokens":3}')
    say('{"kind":"text","id":"%s","text":"x"}' % id)
    say('{"kind":"chunk","id":"%s","index":7,"text":"x","tokens":[],"forward":1}' % id)
    if id == "long": say("x" * (1 << 25))
    say('{"kind":"chunk","id":"%s","index":"0","text":7}' % id)
"""


def test_a_worker_that_writes_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares, "COMMAND", (spares.COMMAND[0], "-c", LIAR))

    async def test() -> None:
        async with opened(None) as pool:
            for id in ("short", "long", "again"):
                events = [event async for event in pool.submit("m", ask(id))]
                assert [type(event) for event in events] == [Failure]
                assert events[0].status == 500  # type: ignore[union-attr]

    run(test)


def test_the_default_model_under_the_pool() -> None:
    prompts = ["The capital of France is", "1, 2, 3, 1, 2, 3, 1, 2"]
    methods: list[dict[str, Any]] = [
        {"decoder": "none"}, {}, {"decoder": "suffix(budget=fixed)"},
        {"temperature": 0.8, "seed": 11},
    ]  # fmt: skip
    wanted = [
        ask(f"{i}.{j}", prompt, max_tokens=8, **method)
        for i, prompt in enumerate(prompts)
        for j, method in enumerate(methods)
    ]

    async def test() -> None:
        async with opened(None) as pool:
            found = await asyncio.gather(*(all_of(pool, request) for request in wanted))
            await idle(pool)
        with LLM(threads=1) as llm:
            for request, (tokens, _) in zip(wanted, found):
                own = llm.complete(str(request.prompt.text), **request.sampling, decoder="greedy")
                assert tokens == own.token_ids

    run(test)
