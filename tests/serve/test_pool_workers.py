"""The pool with real workers: deaths, drains, slow readers, and what is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from looping import ask

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode.serve import replica as replicas
from paradecode.serve import spare as spares
from paradecode.serve.buffer import Bounds
from paradecode.serve.pool import HANG_SECONDS, Pool, Served
from paradecode.serve.scores import ScoreColumns
from paradecode.serve.wire import (
    Accepted,
    ConstraintSpec,
    Done,
    Failure,
    Generate,
    OutputChunk,
    PromptInput,
)
from paradecode.serve.worker.settings import WorkerSettings
from paradecode.serve.workers import RequestFailed
from tiny_folder import write_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_folder(tmp_path_factory.mktemp("llama"), "llama"))


@pytest.fixture(autouse=True)
def restarted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "FIRST_PAUSE", 0.05)


@asynccontextmanager
async def opened(
    folder: str | None,
    count: int = 1,
    *,
    bounds: Bounds | None = None,
    hang_seconds: float = HANG_SECONDS,
    **settings: Any,
) -> AsyncIterator[Pool]:
    worker = WorkerSettings(model=folder, threads=1, **settings)
    pool = Pool([Served("m", worker, count)], SEEN.append_event, bounds, hang_seconds)
    SEEN.clear()
    await pool.start()
    try:
        yield pool
    finally:
        await pool.close()


class Seen(Counter[str]):
    """What the observer was told, by kind; failures by status."""

    def append_event(self, model: str, event: Accepted | Done | Failure) -> None:
        assert model == "m"
        kind = str(event.status) if isinstance(event, Failure) else type(event).__name__
        self[kind] += 1


SEEN = Seen()


async def all_of(pool: Pool, request: Generate) -> tuple[list[int], Any]:
    """Tokens of the first output, and the last event."""
    tokens, last = [], None
    async for event in pool.submit("m", request):
        if isinstance(event, OutputChunk) and event.index == 0:
            tokens += event.tokens
        assert not isinstance(last, Failure), "nothing follows a failure"
        last = event
    return tokens, last


async def events_of(stream: AsyncIterator[Any]) -> list[Any]:
    return [event async for event in stream]


async def last_of(stream: AsyncIterator[Any]) -> Any:
    return (await events_of(stream))[-1]


async def idle(pool: Pool) -> None:
    """Wait until the workers hold nothing; they must not keep a page."""
    for _ in range(1200):
        stats = (await pool.stats())["m"]
        if all(s and s.running == s.waiting == s.held_pages == 0 for s in stats):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"still busy: {stats}")


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 300)

    asyncio.run(bounded())


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
            # A terminal sends Ctrl-C to its session: the workers must not be in it.
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
                own = llm.generate(str(request.prompt.text), **request.sampling, decoder="greedy")
                assert output == own.token_ids
        assert SEEN == {"Accepted": 18, "Done": 21}

    run(test)


CHOICE = ConstraintSpec(type="regex", value="[ab]{400,500}")
STREAMS: dict[str, dict[str, Any]] = {
    "greedy": {"decoder": "none"},
    "default": {"temperature": 0.8},
    "seeded": {"temperature": 0.9, "seed": 3, "decoder": "suffix(budget=fixed)"},
    "several": {"n": 3, "temperature": 1.0, "seed": 9},
    "scores": {"logprobs": 3, "temperature": 1.1, "seed": 5},
    "penalised": {"temperature": 1.0, "seed": 8, "repetition_penalty": 1.2, "min_tokens": 400},
    "constrained": {"constraint": CHOICE, "temperature": 1.0, "seed": 4, "ignore_eos": False},
}


async def outputs_of(pool: Pool, request: Generate, kill: set[int]) -> dict[int, Any]:
    """Of each output its tokens, text and scores. When all outputs have begun, the worker that runs
    the request dies, once for each number in ``kill``: so many tokens of the first are there."""
    kill, found = set(kill), {}
    async for event in pool.submit("m", request):
        if isinstance(event, OutputChunk):
            own = found.setdefault(event.index, {"tokens": [], "text": "", "scores": []})
            own["tokens"] += event.tokens
            own["text"] += event.text
            own["scores"] += [(chosen.token, round(chosen.logprob, 3), [t.token for t in top])
                              for chosen, *top in ScoreColumns(event.logprobs)]  # fmt: skip
            due = {number for number in kill if len(found.get(0, own)["tokens"]) >= number}
            if due:
                kill -= due
                (one,) = (r for r in pool._replicas["m"] if request.id in r.calls)
                assert one.pid is not None
                os.kill(one.pid, signal.SIGKILL)
        elif isinstance(event, Done):
            found[event.index]["end"] = (event.finish_reason, event.stats.generated)
        else:
            assert isinstance(event, Accepted), event
    return found


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_outlives_its_worker(folder: str, name: str) -> None:
    """Twice: its tokens, text and scores are those of an undisturbed run."""
    if "constraint" in STREAMS[name]:
        pytest.importorskip("llguidance")
    given: dict[str, Any] = {"ignore_eos": True, "max_tokens": 600, "seed": 1, **STREAMS[name]}

    async def test() -> None:
        async with opened(folder, 2) as pool:
            plain = await outputs_of(pool, ask("plain", **given), set())
            kill = {20, 150} if name == "constrained" else {50, 300}
            cut = await outputs_of(pool, ask("cut", **given), kill)
            assert cut == plain
            assert sum(pool.restarts.values()) >= 1
            assert SEEN["Accepted"] == 2

    run(test)


def test_a_canvas_outlives_its_worker(tmp_path: Path) -> None:
    folder = str(write_folder(tmp_path, "sdar"))
    given: dict[str, Any] = {"ignore_eos": True, "max_tokens": 200, "seed": 3, "temperature": 0.7}

    async def test() -> None:
        async with opened(folder, 2) as pool:
            plain = await outputs_of(pool, ask("plain", **given), set())
            assert await outputs_of(pool, ask("cut", **given), {20, 60}) == plain

    run(test)


def test_a_stop_text_ends_a_stream_that_was_taken_over(folder: str) -> None:
    given: dict[str, Any] = {"ignore_eos": True, "max_tokens": 600, "temperature": 1.0, "seed": 2}

    async def test() -> None:
        async with opened(folder, 2) as pool:
            text = (await outputs_of(pool, ask("whole", **given), set()))[0]["text"]
            end = next(
                text[at : at + 4]
                for at in range(200, 500)
                if text.find(text[at : at + 4]) == at and text[at : at + 4].isascii()
            )
            plain = await outputs_of(pool, ask("plain", **given, stop=[end]), set())
            assert plain[0]["end"][0] == "stop"
            cut = await outputs_of(pool, ask("cut", **given, stop=[end]), {20, 150})
            assert cut == plain

    run(test)


def test_other_processors_do_not_take_over(folder: str) -> None:
    """A stream waits for a worker of the same bits, beside one that would take it at once."""
    given: dict[str, Any] = {"ignore_eos": True, "max_tokens": 300, "seed": 1}

    async def test() -> None:
        async with opened(folder, 2) as pool:
            first, second = pool._replicas["m"]
            assert first.ready is not None
            assert second.ready is not None
            assert first.ready.bits == second.ready.bits != ""
            plain = await outputs_of(pool, ask("plain", **given), set())
            second.ready = replace(second.ready, bits="other")
            first.served, second.served = 0, 1
            cut = await outputs_of(pool, ask("cut", **given), {100})
            assert cut == plain
            assert (first.restarts, first.served, second.served) == (1, 2, 1)

    run(test)


def test_a_stream_that_no_processor_can_go_on_with_says_so(folder: str) -> None:
    async def test() -> None:
        async with opened(folder, 2) as pool:
            pool._load_seconds = 0.3
            stream = pool.submit("m", ask("cut", ignore_eos=True, max_tokens=3000))
            while not isinstance(await anext(stream), OutputChunk):
                pass
            (victim,) = (r for r in pool._replicas["m"] if r.calls)
            (other,) = (r for r in pool._replicas["m"] if r is not victim)
            assert other.ready is not None
            other.ready = replace(other.ready, bits="other")
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGKILL)
            end = await last_of(stream)
            assert isinstance(end, Failure)
            assert (end.status, other.served) == (503, 0)

    run(test)


def test_what_was_accepted_finds_room_elsewhere(folder: str) -> None:
    """Though the queue of the other worker is full."""

    async def test() -> None:
        async with opened(folder, 2, limits={"batch": 1}, queue_requests=1) as pool:
            tasks = [
                asyncio.create_task(all_of(pool, ask(f"r{i}", ignore_eos=True, max_tokens=400)))
                for i in range(4)
            ]
            while SEEN["Accepted"] < 4:
                await asyncio.sleep(0.01)
            victim = pool._replicas["m"][0]
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGKILL)
            for tokens, last in await asyncio.gather(*tasks):
                assert isinstance(last, Done)
                assert len(tokens) == 400
        assert SEEN == {"Accepted": 4, "Done": 4}

    run(test)


def test_a_worker_that_made_tokens_is_started_again_at_once(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often: only one that dies before it is of use starts later and later."""
    monkeypatch.setattr(replicas, "FIRST_PAUSE", 1e6)

    async def test() -> None:
        async with opened(folder) as pool:
            for number in range(3):
                request = ask(f"r{number}", ignore_eos=True, max_tokens=300, seed=1)
                outputs = await outputs_of(pool, request, {100})
                assert len(outputs[0]["tokens"]) == 300
                while pool.restarts["m"] == number:
                    await asyncio.sleep(0.01)

    run(test)


def test_a_spare_process_takes_the_place_of_a_worker(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one is there soon after; one that has died meanwhile is no spare."""
    monkeypatch.setattr(spares, "LATER", 0.0)

    async def test() -> None:
        async with opened(folder) as pool:
            (one,) = pool._replicas["m"]
            kept = []
            for number in range(3):
                while pool._spare._process is None:
                    await asyncio.sleep(0.01)
                kept.append(pool._spare._process)
                if number == 2:
                    kept[-1].kill()
                    await kept[-1].wait()
                request = ask(f"r{number}", ignore_eos=True, max_tokens=300, seed=1)
                outputs = await outputs_of(pool, request, {100})
                assert len(outputs[0]["tokens"]) == 300
                while one.restarts == number or one.ready is None:
                    await asyncio.sleep(0.01)
                assert (one.pid == kept[-1].pid) == (number < 2)
            while pool._spare._process is None:
                await asyncio.sleep(0.01)
            kept.append(pool._spare._process)
        assert all(process.returncode is not None for process in kept)

    run(test)


def test_there_is_no_spare_where_others_can_take_over(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spares, "LATER", 0.0)

    async def test() -> None:
        async with opened(folder, 2) as pool:
            await asyncio.sleep(0.2)
            assert pool._spare._process is None

    run(test)


FATAL = """
import sys, json, os
sys.stdin.readline()
waiting = []
def say(x): sys.stdout.write(x + "\\n"); sys.stdout.flush()
say('{"kind":"ready","model":"m","families":[],"context_length":9,"vocab_size":9,'
    '"decoder":"x","draft_model":null,"chat":false}')
for line in sys.stdin:
    body = json.loads(line)
    if body["kind"] == "generate":
        waiting.append(body["id"])
        say('{"kind":"accepted","id":"%s","prompt_tokens":3,"resumed":true}' % body["id"])
    elif "fatal" in waiting: os._exit(1)
    else:
        for id in waiting: say('{"kind":"error","id":"%s","status":400,"message":"served"}' % id)
        waiting = []
"""


def test_a_request_that_kills_its_workers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its neighbours are tried one at a time, and served."""
    monkeypatch.setattr(spares, "COMMAND", (spares.COMMAND[0], "-c", FATAL))

    async def test() -> None:
        async with opened(None, hang_seconds=1.6) as pool:
            ids = ["a", "b", "fatal", "c"]
            ends = await asyncio.gather(*(all_of(pool, ask(id)) for id in ids))
            said = {id: (end.status, end.message) for id, (_, end) in zip(ids, ends)}
            assert said.pop("fatal") == (500, "the worker that ran this request died")
            assert {*said.values()} == {(400, "served")}
            assert pool.restarts["m"] <= 3
            assert not pool._turns["m"].locked()

    run(test)


@pytest.mark.parametrize("count", [1, 2])
def test_requests_that_had_not_begun_are_sent_again(folder: str, count: int) -> None:
    async def test() -> None:
        async with opened(folder, count) as pool:
            victim = pool._replicas["m"][0]
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGSTOP)  # It has the requests, and does nothing.
            tasks = [
                asyncio.create_task(all_of(pool, ask(f"r{i}", ignore_eos=True, max_tokens=9)))
                for i in range(4)
            ]
            await asyncio.sleep(0.1)
            assert victim.calls
            os.kill(victim.pid, signal.SIGKILL)
            for tokens, last in await asyncio.gather(*tasks):
                assert isinstance(last, Done)
                assert len(tokens) == 9
        assert SEEN == {"Accepted": 4, "Done": 4}

    run(test)


def test_a_stream_outlives_a_worker_that_hangs(folder: str) -> None:
    given: dict[str, Any] = {"ignore_eos": True, "max_tokens": 1500, "seed": 6, "temperature": 1.0}

    async def test() -> None:
        async with opened(folder, 2, hang_seconds=1.6) as pool:
            plain = await all_of(pool, ask("plain", **given))
            victim, other = pool._replicas["m"]
            victim.served = other.served = 0
            tokens: list[int] = []
            stream = pool.submit("m", ask("cut", **given))
            while len(tokens) < 50:
                event = await anext(stream)
                tokens += event.tokens if isinstance(event, OutputChunk) else ()
            pid = victim.pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            assert [*victim.calls] == ["cut"]
            whole = pool.submit("m", ask("whole", ignore_eos=True, max_tokens=1500))
            rest, end = await asyncio.gather(
                asyncio.create_task(events_of(stream)), asyncio.create_task(last_of(whole))
            )
            tokens += [token for event in rest[:-1] for token in event.tokens]
            assert tokens == plain[0]
            assert isinstance(rest[-1], Done)
            assert isinstance(end, Done)
            while not victim.open:
                await asyncio.sleep(0.05)
            assert victim.pid != pid
            assert (victim.restarts, other.restarts) == (1, 0)
            await idle(pool)

    run(test)


def test_what_may_have_made_a_worker_hang_is_not_tried_again(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that hangs its worker must not have the next one, too."""
    monkeypatch.setattr(replicas, "UNWELL", 0.5)

    async def test() -> None:
        async with opened(folder, 1, hang_seconds=1.6) as pool:
            (victim,) = pool._replicas["m"]
            assert victim.pid is not None
            assert pool.healthy
            os.kill(victim.pid, signal.SIGSTOP)
            lost = asyncio.create_task(last_of(pool.submit("m", ask("lost"))))
            await asyncio.sleep(1.2)
            assert not pool.healthy  # Before it is killed.
            assert victim.restarts == 0
            end = await lost
            assert isinstance(end, Failure)
            assert (end.status, end.message) == (500, "the worker that ran this request hung")
            while not victim.open:
                await asyncio.sleep(0.05)
            assert (victim.served, pool.healthy) == (1, True)

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
            await asyncio.sleep(0.1)
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
            await asyncio.sleep(0.05)
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
            await asyncio.sleep(0.2)
            assert old is not None
            os.kill(old, signal.SIGTERM)
            await asyncio.sleep(0.05)
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
asked = 0
def say(x): sys.stdout.write(x + "\\n"); sys.stdout.flush()
say('{"kind":"ready","model":"m","families":[],"context_length":9,"vocab_size":9,'
    '"decoder":"x","draft_model":null,"chat":false}')
for line in sys.stdin:
    body = json.loads(line)
    asked = asked + 1 if body["kind"] == "stats" else 0
    say('{"kind":"text","id":"worker","text":"x"}')
    if asked == 12: say('{"kind":"error","id":"r","status":400,"message":"end"}')
"""


def test_a_worker_that_is_busy_and_answers_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """No token for half as long again as it may say nothing."""
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
                own = llm.generate(str(request.prompt.text), **request.sampling, decoder="greedy")
                assert tokens == own.token_ids

    run(test)
