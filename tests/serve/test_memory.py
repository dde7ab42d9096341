"""The memory of large requests returns to the system, which would not happen by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("uvicorn")

serving = pytest.importorskip("tools.serving.server")

from tools.serving import attacks

TOY = "tiny=paradecode/tiny-autoregressive"
MILLIONS = ("numbers", "many biases", "bad stops", "messages", "parts", "tools", "bad texts")
"""Names of attacks whose bodies become very many objects."""

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc, and glibc")

BURSTS = """
import asyncio, sys, tracemalloc
from paradecode.serve import memory

if sys.argv[1] == "traced":
    tracemalloc.start()
    assert not memory.small_objects_by_libc()
    sys.exit()
if sys.argv[1] == "mended":
    assert memory.small_objects_by_libc()

def resident():
    pages = open("/proc/self/statm").read().split()[1]
    return int(pages) * 4096 / 2**20

async def grown():
    memory.PERIOD = 0.01
    trimmed, to_thread = asyncio.Event(), asyncio.to_thread

    async def told(*work):
        await to_thread(*work)
        trimmed.set()

    asyncio.to_thread = told
    task = asyncio.create_task(memory.giving_back())
    before, kept = resident(), []
    for _ in range(3):
        burst = [{"text": str(i) * 3} for i in range(200_000)]
        kept += burst[::2000]
        most = resident() - before
        del burst
        trimmed.clear()
        await trimmed.wait()
        trimmed.clear()
        await trimmed.wait()
    task.cancel()
    assert len(kept) == 300
    return most, resident() - before

print(*asyncio.run(grown()))
"""


def burst(how: str) -> tuple[float, float]:
    """Return how many MB a process grows: at most, and after three bursts of objects."""
    command = [sys.executable, "-c", BURSTS, how]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    most, after = map(float, done.stdout.split() or (0, 0))
    return most, after


@linux
def test_objects_that_stay_keep_no_memory_of_those_that_went() -> None:
    most, after = burst("mended")
    assert most > 40
    assert after < 6
    _, plain = burst("plain")
    assert plain > 20, "the control: one object of two thousand keeps the memory of all"


@linux
def test_who_looks_on_at_memory_is_not_disturbed() -> None:
    burst("traced")


SPARED = """
import asyncio, gc
from http_server import FakePool, settings
from paradecode.serve import server
from paradecode.serve.metrics import Metrics

class Stopping(server._Server):
    async def main_loop(self):
        pass

async def main():
    chosen = settings()
    listener = server.bind(chosen)
    one = Stopping(server.configured(chosen, FakePool(), Metrics(["tiny"])))
    one.announce = lambda: print(gc.get_freeze_count(), len(gc.get_objects()))
    one.late = lambda: asyncio.get_running_loop().call_later(9, int)
    await one.serve(sockets=[listener])

asyncio.run(main())
"""


def test_what_a_server_starts_with_is_not_searched_for_garbage() -> None:
    """A server's initial objects are not searched for garbage after a storm of connections."""
    command = [sys.executable, "-c", SPARED]
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=path)
    spared, searched = map(int, done.stdout.split())
    assert spared > 100_000
    assert searched < spared / 100


def fronts(folder: Path, rounds: int) -> list[int]:
    """Return the bytes of an idle front: at the start, and after each round of huge bodies."""
    chosen = [one for one in attacks.ATTACKS if one.name in MILLIONS]
    assert len(chosen) == len(MILLIONS)
    with serving.serving([TOY], folder / "log", attacks.OPTIONS) as server:
        found = [server.settled().front]
        for _ in range(rounds):
            for one in chosen:
                statuses, _ = attacks.strike(server, one, attacks.prepared(one))
                assert set(statuses) <= set(one.expected), one.name
            found.append(server.settled().front)
    return found


@linux
@pytest.mark.slow
def test_the_front_is_as_large_after_each_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The front does not grow from round to round, after two rounds that warm up.

    With Python's own allocator it grows.
    """
    before, _, warm, *later = fronts(tmp_path, 4)
    assert max(later) < warm * (1 + serving.MEMORY_BOUND), [before, warm, *later]
    monkeypatch.setenv("PYTHONMALLOC", "pymalloc")
    plain = fronts(tmp_path, 2)
    assert plain[-1] - plain[0] > 2 * (max(later) - before), [plain, before, *later]
