"""Workers for tests, forked from one process that has imported everything that they need.

A worker takes 0.6 s of processor time to import, and the tests start a hundred workers. Here one
process imports, and each worker is a fork of it. The test process adopts the workers, so it is
their parent, as it is for workers that start in the usual way. Those are tested in
``test_worker_process.py``.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import subprocess
import sys
import time
from asyncio.subprocess import Process
from pathlib import Path
from typing import Any

from paradecode.serve import spare as spares
from paradecode.serve.lines import MAX_LINE

PR_SET_CHILD_SUBREAPER = 36
IMPORTS = 120.0
"""Seconds that the imports may take on a busy machine."""


class ForkedWorker:
    """The part of ``asyncio.subprocess.Process`` that the pool uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = asyncio.Event()
        self._watched = os.pidfd_open(pid)
        asyncio.get_running_loop().add_reader(self._watched, self._reap)

    async def connect(self, stdin: int, stdout: int) -> None:
        """Open the ends of the worker's pipes."""
        loop = asyncio.get_running_loop()
        self.stdout = asyncio.StreamReader(limit=MAX_LINE)
        reading = asyncio.StreamReaderProtocol(self.stdout)
        await loop.connect_read_pipe(lambda: reading, os.fdopen(stdout, "rb", 0))
        pipe, flow = await loop.connect_write_pipe(
            asyncio.streams.FlowControlMixin, os.fdopen(stdin, "wb", 0)
        )
        self.stdin = asyncio.StreamWriter(pipe, flow, None, loop)

    def kill(self) -> None:
        if self.returncode is not None:
            raise ProcessLookupError
        os.kill(self.pid, 9)

    async def wait(self) -> int:
        await self._ended.wait()
        assert self.returncode is not None
        return self.returncode

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._watched)
        os.close(self._watched)
        self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        self._ended.set()


class Nursery:
    """Starts workers as forks of one process, which has imported all modules that they need.

    This process starts when the first worker is wanted.

    Args:
        folder: folder for the costs that workers measure. The first worker measures for all.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._usual, self._command = spares._start, spares.COMMAND
        self._environment = _environment()
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> Process | ForkedWorker:
        """Start a worker, in the usual way if a test has changed its command or the environment."""
        if (self._command, self._environment) != (spares.COMMAND, _environment()):
            return await self._usual()
        ours, theirs = os.pipe(), os.pipe()
        pid = self._fork((ours[0], theirs[1], 2))
        os.close(ours[0])
        os.close(theirs[1])
        worker = ForkedWorker(pid)
        await worker.connect(ours[1], theirs[0])
        return worker

    def close(self) -> None:
        if self._process is not None:
            self._line.close()
            self._process.wait()

    def _fork(self, files: tuple[int, ...]) -> int:
        if self._process is None:
            self._line, far = socket.socketpair()
            self._line.settimeout(IMPORTS)
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(far.fileno())], pass_fds=[far.fileno()],
                env={**os.environ, "XDG_CACHE_HOME": str(self._folder)},
            )  # fmt: skip
            far.close()
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_CHILD_SUBREAPER, 1)  # Orphans below this process become its children.
        try:
            socket.send_fds(self._line, [b"!"], files)
            pid = self._line.recv(32)
        except OSError:  # It is dead, or does not answer.
            pid = b""
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, 0)
        if not pid:
            self._process.kill()
            ended = self._process.wait()
            raise RuntimeError(f"no worker was forked: {__file__} ended with {ended}, see stderr")
        return int(pid)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


def adopted(front: int, seconds: float) -> bool:
    """Return whether ``front`` becomes this process's parent within ``seconds``."""
    end = time.monotonic() + seconds
    while os.getppid() != front:
        if time.monotonic() > end:  # It has died, and another process adopts this one.
            return False
        os.sched_yield()
    return True


def main(line: socket.socket) -> None:
    """Fork a worker for each message, which comes with the worker's stdin, stdout and stderr."""
    import gc
    from functools import cache

    from paradecode.engine import cost, resources
    from paradecode.models import catalogue
    from paradecode.serve.worker.__main__ import main as work
    from paradecode.serve.worker.__main__ import warm

    obtain = resources.obtain

    def remembered(*backend_and_pages: Any) -> cost.CostCurve:
        curve = obtain(*backend_and_pages)
        cost.save(backend_and_pages[0], curve)
        return curve

    resources.obtain = remembered
    shipped = cache(catalogue._named)
    catalogue._named = lambda path, name: shipped(path, name)
    warm()
    catalogue.open_model()
    gc.freeze()
    front = os.getppid()
    while files := socket.recv_fds(line, 1, 3)[1]:
        if (child := os.fork()) == 0:
            if os.fork():
                os._exit(0)
            if not adopted(front, 5.0):
                os._exit(1)
            os.setsid()
            line.send(str(os.getpid()).encode())
            for at, file in enumerate(files):
                os.dup2(file, at)
            os.closerange(3, max(*files, line.fileno()) + 1)
            os._exit(work())
        os.waitpid(child, 0)
        for file in files:
            os.close(file)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
