"""Runs a monitor in a process of its own, within bounds on time and memory.

The process runs only this project's code, but its input may come from anybody: files that Python's
parser reads. If the process hangs, takes too much memory or dies, only the request that asked
fails.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from paradecode.constraints.python.modules import FIELD, check_files
from paradecode.constraints.python.monitor import AttributesExist
from paradecode.core.errors import InvalidInput
from paradecode.core.handoff import wait_for

SECONDS = 2
"""Seconds of processor time for one answer. An ordinary text takes milliseconds."""
PATIENCE = 20.0
"""Seconds of wall time for one answer, because the process may share its core or be blocked."""
MEMORY = 1 << 30
"""Bytes of memory that the process may take for its answers."""
MOST = 8
"""The most monitor processes. The process that has been idle longest is ended first."""

COMMAND = (sys.executable, "-m", __name__)

_kept: list[MonitorApart] = []
_books = threading.Lock()


class MonitorApart(AttributesExist):
    """A :class:`paradecode.constraints.python.masks.Monitor` that asks another process.

    The process is started when it is needed, and started again if it had to make room for others.

    Args:
        files: file name -> source text.
        command: command that starts the process.

    Raises:
        InvalidInput: if a file is not Python, or if the files are too large or take too long to
            read.
    """

    def __init__(self, files: Mapping[str, str], command: Sequence[str] = COMMAND) -> None:
        check_files(files)
        self._files, self._command = dict(files), tuple(command)
        self._process: subprocess.Popen[str] | None = None
        self._turn = threading.Lock()
        wait_for(self._asked(b""))

    def names(self, text: bytes) -> list[bytes] | None:
        if len(text) < 2 or self.ends(text[-2]):  # There is no name before the dot.
            return None
        return wait_for(self._asked(text))

    def end(self) -> None:
        """End the process. The next question starts another one."""
        process, self._process = self._process, None
        if process is not None:
            _kill(process.pid)
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    assert pipe is not None
                    pipe.close()
            process.wait()

    def _asked(self, text: bytes) -> Future[list[bytes] | None]:
        future: Future[list[bytes] | None] = Future()

        def ask() -> None:
            try:
                with self._turn:
                    future.set_result(self._ask(text))
            except BaseException as error:
                future.set_exception(error)

        threading.Thread(target=ask, name="monitor", daemon=True).start()
        return future

    def _ask(self, text: bytes) -> list[bytes] | None:
        process = self._process or self._start()
        timer = threading.Timer(PATIENCE, _kill, (process.pid,))
        timer.start()
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(text.decode("latin-1")) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline(1 << 24))
        except (OSError, ValueError):  # The process has ended.
            self.end()
            fix = f"simplify it: its monitor takes {SECONDS} s or {MEMORY >> 20} MiB, or failed"
            raise InvalidInput("constraint", "python", fix) from None
        finally:
            timer.cancel()
        if isinstance(answer, dict):
            self.end()
            raise InvalidInput(FIELD, answer["value"], answer["fix"])
        return None if answer is None else [name.encode() for name in answer]

    def _start(self) -> subprocess.Popen[str]:
        with _books:
            for other in [one for one in _kept if len(_kept) >= MOST and one is not self]:
                if len(_kept) >= MOST and other._turn.acquire(blocking=False):  # It is idle.
                    other.end()
                    _kept.remove(other)
                    other._turn.release()
            if self in _kept:
                _kept.remove(self)
            _kept.append(self)
        pipe = subprocess.PIPE
        self._process = process = subprocess.Popen(
            self._command, stdin=pipe, stdout=pipe, text=True, start_new_session=True
        )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # The next question will notice.
            process.stdin.write(json.dumps(self._files) + "\n")
            process.stdin.flush()
        return process


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _mapped() -> int:
    """Return the bytes of address space in use, or 0 if the system does not report them."""
    with suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    return 0


def main() -> None:
    """Read the files from the first input line, then answer each further line.

    A further line is a text; the answer is the names that may follow it, as JSON.
    """
    for kind, most in ((resource.RLIMIT_AS, _mapped() + MEMORY), (resource.RLIMIT_CORE, 0),
                       (resource.RLIMIT_NPROC, 0), (resource.RLIMIT_FSIZE, 0)):  # fmt: skip
        resource.setrlimit(kind, (most, most))
    monitor: AttributesExist | None = None
    files = json.loads(sys.stdin.readline())
    for line in sys.stdin:
        spent = int(time.process_time()) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (spent + SECONDS, resource.RLIM_INFINITY))
        try:
            monitor = monitor or AttributesExist(files)
            text = json.loads(line).encode("latin-1")
            names = monitor.names(text) if text else None
            answer: object = names and [name.decode() for name in names]
        except InvalidInput as error:
            answer = {"value": str(error.value)[:80], "fix": error.fix[:400]}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
