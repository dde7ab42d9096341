"""Models that are loaded at their first request, and unloaded for others or when they are idle."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi")

from http_server import Running, running
from looping import ask
from pools import last_of, run

from paradecode.core.errors import InvalidInput
from paradecode.serve import residency
from paradecode.serve.directory import models_in
from paradecode.serve.keys import plain_keys
from paradecode.serve.pool import Pool, Served
from paradecode.serve.residency import OnDemand
from paradecode.serve.settings import ServerSettings
from paradecode.serve.sizes import memory_of
from paradecode.serve.wire import Done, Failure, OutputChunk
from paradecode.serve.worker.settings import WorkerSettings
from patience import until
from tiny_folder import write_folder

LIMITS = {"kv_tokens": 4096, "batch": 4}
NAMES = ("a", "b", "c")


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with three tiny models, and files that are no models."""
    for name in NAMES:
        write_folder(tmp_path / name, "llama")
    (tmp_path / "notes").mkdir()
    (tmp_path / "mmproj-a.gguf").write_bytes(b"GGUF")
    (tmp_path / "README.md").write_text("models")
    return tmp_path


def served(folder: Path, **settings: Any) -> list[Served]:
    return [
        Served(name, WorkerSettings(**{"model": path, "threads": 1, "limits": LIMITS, **settings}))
        for name, path in models_in(folder).items()
    ]


def room_for(folder: Path, count: float) -> int:
    """Return the bytes that ``count`` of the tiny models take."""
    return int(memory_of(served(folder)[0].worker) * count)


@contextmanager
def serving(folder: Path, count: float = 2.5, **changes: Any) -> Iterator[Running]:
    rules = OnDemand(memory_bytes=room_for(folder, count), idle_seconds=changes.pop("idle", None))
    models = tuple(served(folder))
    settings = ServerSettings(models=models, port=0, log_requests=False, on_demand=rules, **changes)
    with running(settings) as server:
        yield server


def states(server: Running) -> dict[str, str]:
    listed = server.client.get("/v1/models").json()["data"]
    return {card["id"]: card["status"]["value"] for card in listed}


def metric(server: Running, name: str) -> dict[str, float]:
    """Return model -> value of a metric of models."""
    found = {}
    for line in server.client.get("/metrics").text.splitlines():
        if line.startswith(f'paradecode:{name}{{model="'):
            found[line.split('"')[1]] = float(line.rpartition(" ")[2])
    return found


def test_models_are_loaded_for_requests_and_unloaded_for_room(models: Path) -> None:
    """Simultaneous first requests load a model once. A third model takes the oldest one's place."""
    with serving(models) as server, ThreadPoolExecutor(4) as clients:
        assert states(server) == dict.fromkeys(NAMES, "unloaded")
        assert "max_model_len" not in server.client.get("/v1/models/a").json()
        assert server.client.get("/health").status_code == 200
        first = [*clients.map(lambda _: server.complete(model="a", max_tokens=4, seed=1), range(4))]
        assert {answer.status_code for answer in first} == {200}
        assert server.complete(model="b", max_tokens=4).json()["model"] == "b"
        assert server.post("/tokenize", {"model": "a", "prompt": "abc"}).json()["count"] == 3
        assert states(server) == {"a": "loaded", "b": "loaded", "c": "unloaded"}
        assert server.client.get("/v1/models/a").json()["max_model_len"] == 4096
        assert server.complete(model="c", max_tokens=4).status_code == 200
        assert states(server) == {"a": "loaded", "b": "unloaded", "c": "loaded"}
        again = server.complete(model="b", max_tokens=4, seed=1).json()
        assert again["choices"] == first[0].json()["choices"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert metric(server, "model_loads_total") == {"a": 1, "b": 2, "c": 1}
        assert metric(server, "model_unloads_total") == {"a": 1, "b": 1, "c": 0}
        for name in ("model_counted_bytes", "model_resident_bytes"):
            held = metric(server, name)
            assert [held[model] > 0 for model in NAMES] == [False, True, True], name
        assert server.client.get("/health").status_code == 200


def test_unknown_names_load_nothing(models: Path) -> None:
    """Neither paths nor thousands of invented names load a model or leave anything behind."""
    with serving(models) as server:
        before = len(server.client.get("/metrics").text.splitlines())
        names = [str(models / "a"), "../a", "a/../b", "%2e%2e/a", "a\0", "A", "a.gguf", "./a"]
        names += [f"model-{number}" for number in range(2000)]
        for name in names:
            refused = server.complete(model=name, max_tokens=1)
            assert refused.status_code in (400, 404), name
        error = refused.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "a, b, c" in error["message"]
        assert server.client.get("/v1/models/..%2fa").status_code == 404
        assert states(server) == dict.fromkeys(NAMES, "unloaded")
        after = len(server.client.get("/metrics").text.splitlines())
        assert after < before + 12  # The counts of the answers, by route and status.


def test_a_file_that_cannot_be_loaded_fails_its_own_requests(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer says why, without the path. When the file is whole again, the model is loaded."""
    monkeypatch.setattr(residency, "COME_BACK", 0.0)
    whole = (models / "b" / "model.safetensors").read_bytes()
    (models / "b" / "model.safetensors").write_bytes(whole[:300])
    (models / "d.gguf").write_bytes(b"GGUF and no more")
    with serving(models) as server:
        for name in ("b", "d"):
            refused = server.complete(model=name, max_tokens=4)
            assert refused.status_code == 503
            message = refused.json()["error"]["message"]
            assert message.startswith("the model is not loaded: ")
            assert str(models) not in message
        assert server.complete(model="a", max_tokens=4).status_code == 200
        assert server.client.get("/health").status_code == 200
        (models / "b" / "model.safetensors").write_bytes(whole)
        assert server.complete(model="b", max_tokens=4).status_code == 200
        shutil.rmtree(models / "a")
        assert server.complete(model="a", max_tokens=4).status_code == 200  # It is in memory.
        (worker,) = server.pool._replicas["a"]
        os.kill(worker.pid, signal.SIGKILL)
        until(lambda: worker.failed)
        assert server.complete(model="a", max_tokens=4).status_code == 503
        assert states(server)["a"] == "unloaded"
        write_folder(models / "a", "llama")
        assert server.complete(model="a", max_tokens=4).status_code == 200


def test_idle_models_are_unloaded(models: Path) -> None:
    """Nothing of a key's requests survives, and a stream that runs keeps its model."""
    keys = plain_keys(["key-of-alice", "key-of-bob"])
    with serving(models, idle=0.3, keys=keys) as server:
        given = {"model": "a", "prompt": "ab" * 40, "max_tokens": 8, "seed": 3}
        first = server.post("/v1/completions", given).json()
        assert server.post("/v1/completions", given).status_code == 200
        until(lambda: states(server)["a"] == "unloaded")
        again = server.post("/v1/completions", given).json()
        assert again["choices"] == first["choices"]
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        long = {**given, "stream": True, "max_tokens": 3000, "ignore_eos": True}
        with server.client.stream("POST", "/v1/completions", json=long) as stream:
            lines = (line for line in stream.iter_lines() if line)
            next(lines)
            before = server.pool.residence["a"]
            assert [*lines][-1] == "data: [DONE]"
        assert server.pool.residence["a"].loads == before.loads
        until(lambda: server.pool.residence["a"].unloads == before.unloads + 1)


def held(
    models: Path, count: float, test: Callable[[Pool], Any], idle: float | None = None, **given: Any
) -> None:
    """Run a test of a pool that has room for ``count`` models."""

    async def started() -> None:
        rules = OnDemand(memory_bytes=room_for(models, count), idle_seconds=idle)
        pool = Pool(served(models, **given), on_demand=rules)
        try:
            await pool.start()
            await test(pool)
            groups = pool._groups.values()
            assert not any(group.users or group.waiting or group.leaving for group in groups)
        finally:
            await pool.close()
        replicas = [replica for group in pool._groups.values() for replica in group.replicas]
        assert all(replica._process.returncode is not None for replica in replicas)

    run(started)


LONG = {"ignore_eos": True, "max_tokens": 1500, "seed": 2}
SHORT = {"ignore_eos": True, "max_tokens": 20, "seed": 2}


async def begun(pool: Pool, model: str, id: str) -> Any:
    """Return a stream that has begun and will go on for some time."""
    stream = pool.submit(model, ask(id, **LONG))
    while not isinstance(await anext(stream), OutputChunk):
        pass
    return stream


def test_models_in_use_stay_and_all_have_their_turn(models: Path) -> None:
    """A request for another model waits for the stream, and a later one for the first model, too.

    So a model that is always in use cannot keep another one out.
    """

    async def test(pool: Pool) -> None:
        ends: list[str] = []

        async def asked(model: str, id: str) -> None:
            end = await last_of(pool.submit(model, ask(id, **SHORT)))
            assert isinstance(end, Done), end
            ends.append(id)

        stream = await begun(pool, "a", "long")
        other = asyncio.create_task(asked("b", "other"))
        while not pool._groups["a"].leaving:
            await asyncio.sleep(0.01)
        later = asyncio.create_task(asked("a", "later"))
        await asyncio.sleep(0.05)
        assert (len(pool._groups["b"].replicas), ends) == (0, [])
        assert isinstance(await last_of(stream), Done)
        await asyncio.gather(other, later)
        assert ends == ["other", "later"]
        assert [pool._groups[name].loads for name in NAMES] == [2, 1, 0]

    held(models, 1.5, test)


def test_requests_that_leave_while_a_model_waits_leave_nothing(models: Path) -> None:
    """The model in use goes on with new requests, and the other one is never loaded."""

    async def test(pool: Pool) -> None:
        stream = await begun(pool, "a", "long")
        waits = [asyncio.create_task(last_of(pool.submit("b", ask(str(n))))) for n in range(3)]
        while len(pool._groups["b"].waiting) < 3:
            await asyncio.sleep(0.01)
        same = asyncio.create_task(last_of(pool.submit("a", ask("same", **SHORT))))
        await asyncio.sleep(0.05)
        assert not same.done()
        for task in waits:
            task.cancel()
        await asyncio.gather(*waits, return_exceptions=True)
        assert isinstance(await same, Done)
        await stream.aclose()
        assert [pool._groups[name].loads for name in NAMES] == [1, 0, 0]
        cut = asyncio.create_task(last_of(pool.submit("b", ask("cut"))))
        while not pool._groups["b"].replicas:  # Now its worker loads.
            await asyncio.sleep(0.001)
        cut.cancel()
        assert isinstance(await last_of(pool.submit("c", ask("c", **SHORT))), Done)

    held(models, 1.5, test)


def test_the_queue_of_a_model_that_waits_for_room_is_bounded(models: Path) -> None:
    async def test(pool: Pool) -> None:
        stream = await begun(pool, "a", "long")
        waits = [asyncio.create_task(last_of(pool.submit("b", ask(str(n))))) for n in range(6)]
        while len(pool._groups["b"].waiting) < 6:
            await asyncio.sleep(0.01)
        full = await last_of(pool.submit("b", ask("full")))
        assert isinstance(full, Failure)
        assert full.status == 429
        late = await last_of(pool.submit("b", ask("late", key="another", deadline=0.05)))
        assert isinstance(late, Failure)
        assert (late.status, late.param) == (503, "model")
        assert len(pool._groups["b"].waiting) == 6
        pool.stop()  # A server that ends tells those that wait.
        assert {end.status for end in await asyncio.gather(*waits)} == {503}
        await stream.aclose()

    held(models, 1.5, test, queue_requests=2)


def test_a_model_that_never_fits_is_refused_at_the_start(models: Path) -> None:
    with pytest.raises(InvalidInput, match="--memory-limit") as caught:
        held(models, 0.5, lambda pool: None)  # type: ignore[arg-type, return-value]
    assert caught.value.value == "a"


def test_a_folder_of_models_names_them(models: Path) -> None:
    """Models in several files have one name. Folders without models are refused."""
    for part in (1, 2):
        (models / f"big-0000{part}-of-00002.gguf").write_bytes(b"GGUF")
    found = models_in(models)
    assert [*found] == ["a", "b", "big", "c"]
    assert found["big"].endswith("-00001-of-00002.gguf")
    (models / "a.gguf").write_bytes(b"GGUF")
    with pytest.raises(InvalidInput, match="rename"):
        models_in(models)
    for wrong in (models / "notes", models / "missing"):
        with pytest.raises(InvalidInput, match="models_dir"):
            models_in(wrong)
