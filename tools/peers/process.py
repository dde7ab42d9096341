"""A worker process, which answers one request at a time and is stopped between requests."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

WORKERS = Path(__file__).with_name("workers")
TICKS = os.sysconf("SC_CLK_TCK")


class WorkerError(Exception):
    """The worker answered with an error, or not at all; ``ended`` says that the process is gone."""

    def __init__(self, reason: str, ended: bool = False) -> None:
        super().__init__(reason)
        self.ended = ended


class Worker:
    """A worker in the peer's environment, in a process group and session of its own.

    Between requests the whole group is stopped (SIGSTOP): a peer whose threads spin while they wait
    would otherwise slow down the engine that is measured next.

    Args:
        python: path of the Python in the peer's environment.
        script: name of a file in ``workers``.
        log: the file that gets its stderr.
        variables: environment variables in addition to the inherited ones.
        urgent: whether to ask for a higher scheduling priority, where this is allowed.
    """

    def __init__(
        self,
        python: Path,
        script: str,
        log: Path,
        variables: Mapping[str, str],
        urgent: bool = False,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self._log = log
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [str(python), str(WORKERS / script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **variables},
                start_new_session=True,
            )
        self._buffer = b""
        self._peak = 0
        if urgent:
            _raise_priority(self._process.pid)

    def ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        """Wake the worker, send a request, wait for the answer, and stop the worker again.

        Raises:
            WorkerError: the worker reports an error, is too slow or has ended. In the last two
                cases it is killed.
        """
        self._signal(signal.SIGCONT)
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            answer = json.loads(self._line(timeout))
        except (OSError, ValueError) as error:
            self.kill()
            raise WorkerError(f"worker ended: {last_line(self._log) or error}", True) from None
        self._signal(signal.SIGSTOP)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return dict(answer)

    def cpu_seconds(self) -> float:
        """Return the processor time of the group so far, in seconds."""
        return sum(_times(pid) for pid in _members(self._process.pid))

    def peak_bytes(self) -> int | None:
        """Return the most resident bytes so far, summed over the group's processes.

        This is an upper bound if the group has several processes.
        """
        found = [status_bytes(pid, "VmHWM") for pid in _members(self._process.pid)]
        self._peak = max(self._peak, sum(found))
        return self._peak or None

    def kill(self) -> None:
        """End the group; this is harmless if it has already ended."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def _line(self, timeout: float) -> bytes:
        assert self._process.stdout is not None
        descriptor, end = self._process.stdout.fileno(), time.monotonic() + timeout
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([descriptor], [], [], max(end - time.monotonic(), 0))
            if not ready:
                self.kill()
                raise WorkerError(f"no answer after {timeout:.0f} s", True)
            part = os.read(descriptor, 1 << 16)
            if not part:
                raise OSError("it closed its output")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _signal(self, number: int) -> None:
        signal_group(self._process.pid, number)


def signal_group(group: int, number: int) -> None:
    """Send a signal to all processes of a group; this is harmless if they have already ended."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def last_line(log: Path) -> str:
    """Return the last line of a log that is not blank; empty if there is none."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines()]
    return ([line for line in lines if line] or [""])[-1][:300]


def _members(group: int) -> list[int]:
    """Return the ids of the processes in a group."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(entry.name))
        if fields and int(fields[2]) == group:
            found.append(int(entry.name))
    return found


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on; none if the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
    except OSError:
        return []


def _times(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / TICKS if fields else 0.0


def status_bytes(pid: int, field: str) -> int:
    """Return a field of /proc/PID/status, such as VmRSS, in bytes; 0 if there is none."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))


def _raise_priority(pid: int) -> None:
    """Raise the priority of a process and of its session's scheduling group.

    If the system has such groups, nice alone has no effect.
    """
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, pid, -10)
        Path(f"/proc/{pid}/autogroup").write_text("-10", "utf-8")
