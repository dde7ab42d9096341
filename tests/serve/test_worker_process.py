"""The worker as a process: its first line, its signals, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import pytest
from looping import ask

from paradecode.core.errors import InvalidInput
from paradecode.serve.lines import MAX_LINE, decode, encode
from paradecode.serve.wire import EVENTS, Done, Failure, OutputChunk, Ready
from paradecode.serve.worker.settings import WorkerSettings
from patience import state, until


class Worker:
    def __init__(self, first: bytes) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "paradecode.serve.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.write(first)

    def write(self, *lines: bytes) -> None:
        stdin: IO[bytes] = self.process.stdin  # type: ignore[assignment]
        stdin.write(b"".join(lines))
        stdin.flush()

    def read(self) -> Any:
        line = self.process.stdout.readline()  # type: ignore[union-attr]
        return decode(line, EVENTS) if line else None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            with suppress(OSError):
                pipe.close()  # type: ignore[union-attr]

    def until(self, kind: type | tuple[type, ...]) -> Any:
        while not isinstance(event := self.read(), kind):
            assert event is not None
        return event


@pytest.fixture
def worker(folder: str) -> Iterator[Worker]:
    one = Worker(WorkerSettings(model=folder, threads=1).line())
    yield one
    one.close()


def test_a_worker_serves_and_drains(worker: Worker) -> None:
    ready = worker.read()
    assert isinstance(ready, Ready)
    assert (ready.context_length, ready.vocab_size, ready.chat) == (4096, 96, False)
    if find_spec("llguidance") is not None and sys.platform == "linux":
        assert b"paradecode.constraints.trial" in _children(worker.process.pid)
    worker.write(b"x" * (MAX_LINE + 5) + b"\n", b"\xff\n")
    for _ in range(2):
        assert isinstance(worker.read(), Failure)
    worker.write(encode(ask("a", ignore_eos=True, max_tokens=600)))
    worker.until(OutputChunk)
    worker.process.send_signal(signal.SIGTERM)
    while True:  # The signal takes effect between two steps.
        worker.write(encode(ask("b", max_tokens=1)))
        refused = worker.until((Failure, Done))
        if isinstance(refused, Failure) or refused.id == "a":
            break
    assert isinstance(refused, Failure)
    assert (refused.id, refused.status) == ("b", 503)
    done = worker.until(Done)
    assert (done.id, done.stats.generated) == ("a", 600)
    assert worker.process.wait(60) == 0


def test_a_worker_ends_with_its_front(worker: Worker) -> None:
    worker.read()
    worker.write(encode(ask("a", ignore_eos=True, max_tokens=4000)))
    worker.until(OutputChunk)
    worker.process.stdin.close()  # type: ignore[union-attr]
    assert worker.process.wait(60) == 0


def test_a_worker_whose_events_nobody_reads_ends(worker: Worker) -> None:
    worker.read()
    worker.process.stdout.close()  # type: ignore[union-attr]
    worker.write(encode(ask("a", ignore_eos=True, max_tokens=4000)))
    assert worker.process.wait(60) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for a signal")
def test_a_worker_that_cannot_see_its_front_end_ends_with_it(folder: str) -> None:
    """The worker ends with its front, although another process keeps its stdin open.

    The worker has nothing to write, so it cannot notice the end by itself.
    """
    front = (
        "import subprocess, sys, time\n"
        "worker = subprocess.Popen([sys.executable, '-m', 'paradecode.serve.worker'],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "worker.stdin.write(sys.argv[1].encode()); worker.stdin.flush()\n"
        "worker.stdout.readline()\n"
        "subprocess.Popen(['sleep', '600'], pass_fds=[worker.stdin.fileno()])\n"
        "print(worker.pid, flush=True)\n"
        "time.sleep(600)"
    )
    line = WorkerSettings(model=folder, threads=1).line()
    process = subprocess.Popen([sys.executable, "-c", front, line], stdout=subprocess.PIPE)
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    process.kill()
    process.wait()
    process.stdout.close()
    try:
        until(lambda: state(pid) == "Z")
    finally:
        for child in map(int, children):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)


def test_a_worker_has_imported_what_searches_need() -> None:
    """Searches import nothing new.

    Otherwise all requests would wait for the first search's imports.
    """
    code = (
        "import sys\n"
        "from paradecode.serve.worker.__main__ import warm\n"
        "warm()\n"
        "before = set(sys.modules)\n"
        "from paradecode.search.strategies import find_strategy\n"
        "find_strategy('best-of(n=2)')\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def _children(pid: int) -> bytes:
    """Return the command lines of a process's children, joined."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    children = [child for one in threads for child in (one / "children").read_text().split()]
    return b"\n".join(Path(f"/proc/{child}/cmdline").read_bytes() for child in children)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (b"{}\x00\n", "settings"),
        (b'{"model": "/nowhere/at/all.gguf"}\n', "/nowhere"),
        (b'{"decoder": "no-such"}\n', "no-such"),
    ],
)
def test_settings_that_cannot_be_used(first: bytes, said: str) -> None:
    worker = Worker(first)
    failed = worker.read()
    assert isinstance(failed, Failure)
    assert said in failed.message
    assert worker.process.wait(60) == 2
    worker.close()


@pytest.mark.parametrize(
    ("line", "field"),
    [
        (b'{"modl": "x"}', "modl"), (b'{"limits": {"batch": 0}}', "batch"),
        (b'{"limits": {"bach": 1}}', "limits.bach"), (b'{"threads": true}', "threads"),
        (b'{"ranks": 65}', "ranks"), (b'{"model": 7}', "model"), (b"[]", "settings"),
        (b"[" * 100_000, "settings"), (b'{"max_tokens": 0}', "max_tokens"),
    ],
)  # fmt: skip
def test_lines_that_are_no_settings(line: bytes, field: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        WorkerSettings.read(line)
    assert caught.value.field == field


def test_settings_survive_their_line(tmp_path: Path) -> None:
    settings = WorkerSettings(model=str(tmp_path), limits={"batch": 4}, threads=2, queue_tokens=9)
    assert WorkerSettings.read(settings.line()) == settings
    assert settings.engine_limits().batch == 4
