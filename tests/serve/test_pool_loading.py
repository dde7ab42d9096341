"""Workers that hang while they load their model are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from paradecode.core.errors import InvalidInput
from paradecode.serve import replica as replicas
from paradecode.serve import spare as spares
from paradecode.serve.pool import Pool, Served
from paradecode.serve.worker.settings import WorkerSettings

READY = """
import os, sys, time
sys.stdin.readline()
while os.path.exists({hang!r}): time.sleep(0.01)
print('{{"kind":"ready","model":"m","families":[],"context_length":9,"vocab_size":9,'
      '"decoder":"x","draft_model":null,"chat":false}}', flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a file. While it exists, workers that start do not become ready."""
    path = tmp_path / "hang"
    code = READY.format(hang=str(path))
    monkeypatch.setattr(spares, "COMMAND", (spares.COMMAND[0], "-c", code))
    return path


def test_a_start_that_hangs_ends_with_an_error(hang: Path) -> None:
    hang.touch()

    async def test() -> None:
        pool = Pool([Served("mine", WorkerSettings(), 2)], load_seconds=0.2)
        with pytest.raises(InvalidInput, match="mine") as caught:
            await pool.start()
        assert "--load-timeout" in caught.value.fix
        assert not pool.healthy
        assert all(replica._process.returncode is not None for replica in pool._replicas["mine"])

    asyncio.run(asyncio.wait_for(test(), 60))


def test_a_new_worker_that_hangs_is_started_again(
    hang: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(replicas, "FIRST_PAUSE", 0.05)

    async def test() -> None:
        pool = Pool([Served("mine", WorkerSettings())])
        await pool.start()
        (replica,) = pool._replicas["mine"]
        first = replica.pid
        hang.touch()
        replica._load_seconds = 0.2
        os.kill(first, signal.SIGKILL)
        while "did not load" not in caplog.text:
            assert not replica.open or replica.pid == first
            await asyncio.sleep(0.01)
        assert not pool.healthy
        replica._load_seconds = 60.0
        hang.unlink()
        while not replica.open:
            await asyncio.sleep(0.01)
        assert pool.healthy
        assert replica.restarts >= 2
        await pool.close()

    asyncio.run(asyncio.wait_for(test(), 60))
    assert "a worker of mine did not start" in caplog.text


def test_a_server_may_be_closed_while_a_worker_hangs(
    hang: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "GRACE", 0.1)
    hang.touch()

    async def test() -> None:
        pool = Pool([Served("mine", WorkerSettings())])
        start = asyncio.create_task(pool.start())
        while not pool._replicas or pool._replicas["mine"][0].pid is None:
            await asyncio.sleep(0.01)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        assert pool._replicas["mine"][0]._process.returncode is not None

    asyncio.run(asyncio.wait_for(test(), 60))
