"""If a worker dies or hangs, another worker continues its requests."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from looping import ask
from pools import SEEN, all_of, events_of, idle, last_of, opened, run

from paradecode.serve import replica as replicas
from paradecode.serve import spare as spares
from paradecode.serve.pool import Pool
from paradecode.serve.scores import ScoreColumns
from paradecode.serve.wire import Accepted, ConstraintSpec, Done, Failure, Generate, OutputChunk
from tiny_folder import write_folder


@pytest.fixture(autouse=True)
def mortal_and_restarted_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use workers that die where the id of a request says so, and are restarted at once."""
    mortal = Path(__file__).with_name("mortal_worker.py")
    monkeypatch.setattr(spares, "COMMAND", (sys.executable, str(mortal)))
    monkeypatch.setattr(replicas, "FIRST_PAUSE", 0.05)


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


async def outputs_of(pool: Pool, request: Generate) -> dict[int, Any]:
    """Return the tokens, text, scores and end of each output."""
    found: dict[int, Any] = {}
    async for event in pool.submit("m", request):
        if isinstance(event, OutputChunk):
            own = found.setdefault(event.index, {"tokens": [], "text": "", "scores": []})
            own["tokens"] += event.tokens
            own["text"] += event.text
            own["scores"] += [(chosen.token, round(chosen.logprob, 3), [t.token for t in top])
                              for chosen, *top in ScoreColumns(event.logprobs)]  # fmt: skip
        elif isinstance(event, Done):
            found[event.index]["end"] = (event.finish_reason, event.stats.generated)
        else:
            assert isinstance(event, Accepted), event
    return found


@pytest.mark.wide
def test_streams_outlive_their_workers(folder: str) -> None:
    """Each stream loses two workers, and has the tokens, text and scores of an undisturbed run."""
    names = [n for n in STREAMS if n != "constrained" or find_spec("llguidance") is not None]

    async def test() -> None:
        async with opened(folder, 2) as pool:
            for name in names:
                given = {"ignore_eos": True, "max_tokens": 900, "seed": 1, **STREAMS[name]}
                before = sum(pool.restarts.values())
                plain = await outputs_of(pool, ask(f"plain {name}", **given))
                cut = await outputs_of(pool, ask(f"{name} die 20 die 150", **given))
                assert cut == plain, name
                while sum(pool.restarts.values()) < before + 2:
                    await asyncio.sleep(0.01)
            assert SEEN["Accepted"] == 2 * len(names)

    run(test)


def test_a_canvas_outlives_its_worker(tmp_path: Path) -> None:
    folder = str(write_folder(tmp_path, "sdar"))
    given: dict[str, Any] = {"ignore_eos": True, "max_tokens": 200, "seed": 3, "temperature": 0.7}

    async def test() -> None:
        async with opened(folder, 2) as pool:
            plain = await outputs_of(pool, ask("plain", **given))
            assert await outputs_of(pool, ask("die 20", **given)) == plain
            assert sum(pool.restarts.values()) == 1

    run(test)


@pytest.mark.wide
def test_a_stop_text_ends_a_stream_that_was_taken_over(folder: str) -> None:
    given: dict[str, Any] = {"ignore_eos": True, "max_tokens": 600, "temperature": 1.0, "seed": 2}

    async def test() -> None:
        async with opened(folder, 2) as pool:
            text = (await outputs_of(pool, ask("whole", **given)))[0]["text"]
            end = next(
                text[at : at + 4]
                for at in range(200, 500)
                if text.find(text[at : at + 4]) == at and text[at : at + 4].isascii()
            )
            plain = await outputs_of(pool, ask("plain", **given, stop=[end]))
            assert plain[0]["end"][0] == "stop"
            cut = await outputs_of(pool, ask("die 20 die 150", **given, stop=[end]))
            assert cut == plain

    run(test)


@pytest.mark.wide
def test_other_processors_do_not_take_over(folder: str) -> None:
    """A stream waits for a worker with the same arithmetic, although another one is free."""
    given: dict[str, Any] = {"ignore_eos": True, "max_tokens": 300, "seed": 1}

    async def test() -> None:
        async with opened(folder, 2) as pool:
            first, second = pool._replicas["m"]
            assert first.ready is not None
            assert second.ready is not None
            assert first.ready.bits == second.ready.bits != ""
            plain = await outputs_of(pool, ask("plain", **given))
            second.ready = replace(second.ready, bits="other")
            first.served, second.served = 0, 1
            cut = await outputs_of(pool, ask("die 100", **given))
            assert cut == plain
            assert (first.restarts, first.served, second.served) == (1, 2, 1)

    run(test)


@pytest.mark.wide
def test_a_stream_that_no_processor_can_go_on_with_says_so(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream fails, because the worker that died does not come back in time."""

    async def test() -> None:
        async with opened(folder, 2) as pool:
            pool._load_seconds = 0.3
            monkeypatch.setattr(spares, "_start", partial(asyncio.sleep, 600))
            victim, other = pool._replicas["m"]
            assert other.ready is not None
            other.ready = replace(other.ready, bits="other")
            victim.served, other.served = 0, 1
            end = await last_of(pool.submit("m", ask("die 1", ignore_eos=True, max_tokens=3000)))
            assert isinstance(end, Failure)
            assert (end.status, victim.served, other.served) == (503, 1, 1)

    run(test)


@pytest.mark.wide
def test_what_was_accepted_finds_room_elsewhere(folder: str) -> None:
    """An accepted request is continued by another worker, although that worker's queue is full."""

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


@pytest.mark.wide
def test_a_worker_that_made_tokens_is_started_again_at_once(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that made tokens is restarted at once, however often it dies.

    Only a worker that dies before it makes tokens waits longer each time.
    """
    monkeypatch.setattr(replicas, "FIRST_PAUSE", 1e6)

    async def test() -> None:
        async with opened(folder) as pool:
            for number in range(3):
                request = ask(f"r{number} die 100", ignore_eos=True, max_tokens=1500, seed=1)
                outputs = await outputs_of(pool, request)
                assert len(outputs[0]["tokens"]) == 1500
                while pool.restarts["m"] == number:
                    await asyncio.sleep(0.01)

    run(test)


@pytest.mark.wide
def test_a_spare_process_takes_the_place_of_a_worker(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A spare process replaces a dead worker, and a new spare follows soon.

    A spare that has died meanwhile is not used.
    """
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
                request = ask(f"r{number} die 100", ignore_eos=True, max_tokens=1500, seed=1)
                outputs = await outputs_of(pool, request)
                assert len(outputs[0]["tokens"]) == 1500
                while one.restarts == number or one.ready is None:
                    await asyncio.sleep(0.01)
                assert (one.pid == kept[-1].pid) == (number < 2)
            while pool._spare._process is None:
                await asyncio.sleep(0.01)
            kept.append(pool._spare._process)
        assert all(process.returncode is not None for process in kept)

    run(test)


def test_there_is_no_spare_where_others_can_take_over(folder: str) -> None:
    async def test() -> None:
        async with opened(folder, 2) as pool:
            assert pool._spare._timer is None

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
    """The request that kills its workers fails.

    Its neighbours run one at a time, and are answered.
    """
    monkeypatch.setattr(spares, "COMMAND", (spares.COMMAND[0], "-c", FATAL))

    async def test() -> None:
        async with opened(None, hang_seconds=1.6) as pool:
            ids = ["a", "b", "fatal", "c"]
            ends = await asyncio.gather(*(all_of(pool, ask(id)) for id in ids))
            said = {id: (end.status, end.message) for id, (_, end) in zip(ids, ends)}
            assert said.pop("fatal") == (500, "the worker that ran this request died")
            assert {*said.values()} == {(400, "served")}
            assert pool.restarts["m"] <= 3
            assert not pool._groups["m"].turn.locked()

    run(test)


@pytest.mark.first(1)
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
            while sum(r.served for r in pool._replicas["m"]) < 4:
                await asyncio.sleep(0.01)
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
            stream = pool.submit("m", ask("hang 50", **given))
            while len(tokens) < 50:
                event = await anext(stream)
                tokens += event.tokens if isinstance(event, OutputChunk) else ()
            pid = victim.pid
            assert [*victim.calls] == ["hang 50"]
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


@pytest.mark.wide
def test_what_may_have_made_a_worker_hang_is_not_tried_again(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request that may have made its worker hang is not given to the next worker."""
    monkeypatch.setattr(replicas, "UNWELL", 0.5)

    async def test() -> None:
        async with opened(folder, 1, hang_seconds=1.6) as pool:
            (victim,) = pool._replicas["m"]
            assert victim.pid is not None
            assert pool.healthy
            os.kill(victim.pid, signal.SIGSTOP)
            lost = asyncio.create_task(last_of(pool.submit("m", ask("lost"))))
            while pool.healthy:
                await asyncio.sleep(0.01)
            assert victim.open  # It is not killed yet.
            end = await lost
            assert isinstance(end, Failure)
            assert (end.status, end.message) == (500, "the worker that ran this request hung")
            while not victim.open:
                await asyncio.sleep(0.05)
            assert (victim.served, pool.healthy) == (1, True)

    run(test)
