"""Starts a `paradecode serve` for load tests, and measures what it holds."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from paradecode.serve.memory import PERIOD
from tools.peers.process import status_bytes

MEMORY_BOUND = 0.02
"""The share by which memory may grow during the test."""

KV_TOKENS = "16384"
"""Number of K/V slots, in tokens. It is small, so that all of them are soon used once."""

FILLING = 240
"""Number of tokens of a prompt for which every model has room."""

LOGS = Path(tempfile.gettempdir())

PATIENCE = 900.0
"""Timeout in seconds. A hostile request may ask for eight answers as long as the context."""


@dataclass(frozen=True)
class Holdings:
    """The memory and the requests that a server holds at one moment.

    Attributes:
        front: bytes of the front process.
        workers: bytes of all workers.
        pages: number of K/V pages in use.
        outputs: number of outputs that run or wait.
        restarts: number of workers that were restarted.
    """

    front: int
    workers: int
    pages: int
    outputs: int
    restarts: int


@dataclass(frozen=True)
class Server:
    url: str
    pid: int

    def holdings(self) -> Holdings:
        page = httpx.get(f"{self.url}/metrics", timeout=30).text

        def total(name: str) -> int:
            rows = re.findall(rf"^paradecode:{name}{{.*}} (\S+)$", page, re.MULTILINE)
            return int(sum(map(float, rows)))

        return Holdings(
            status_bytes(self.pid, "VmRSS"), total("worker_memory_bytes"), total("kv_pages_used"),
            total("num_requests_running") + total("num_requests_waiting"),
            total("worker_restarts_total"),
        )  # fmt: skip

    def fill(self) -> None:
        """Use all K/V memory of every model once, because its first use would look like a leak.

        A prompt's page stays cached as long as another page is free, so every prompt here is
        different.
        """
        with httpx.Client(base_url=self.url, timeout=PATIENCE) as client:
            for model in client.get("/v1/models").json()["data"]:
                for number in range(int(KV_TOKENS) // FILLING + 1):
                    prompt = [1 + number % 200, 1 + number // 200, *[5] * (FILLING - 2)]
                    body = {"model": model["id"], "prompt": prompt, "max_tokens": 1}
                    client.post("/v1/completions", json=body).raise_for_status()

    def settled(self, seconds: float = 60.0) -> Holdings:
        """Wait until nothing runs and freed memory was returned, and return what is held then.

        Raises:
            TimeoutError: something still runs after ``seconds``.
        """
        end = time.monotonic() + seconds
        while True:
            found = self.holdings()
            if not (found.outputs or found.pages):
                time.sleep(2 * PERIOD)
                return self.holdings()
            if time.monotonic() > end:
                raise TimeoutError(f"still held after {seconds:g} s: {found}")
            time.sleep(0.2)


def complaints(before: Holdings, after: Holdings) -> list[str]:
    """Return what leaked between two moments at which nothing ran."""
    found = []
    for name in ("front", "workers"):
        old, new = getattr(before, name), getattr(after, name)
        if new > old * (1 + MEMORY_BOUND):
            found.append(f"{name}: {old / 2**20:.1f} MB became {new / 2**20:.1f} MB")
    if after.restarts:
        found.append(f"{after.restarts} workers died")
    return found


@contextmanager
def serving(models: Sequence[str], log: Path, options: Sequence[str] = ()) -> Iterator[Server]:
    """Start a server on a free port, with further options; its log goes to a file."""
    program = "from paradecode.cli import main; main()"
    command = [
        sys.executable, "-c", program, "serve", *models, "--port", "0", "--kv-tokens", KV_TOKENS,
        *options,
    ]  # fmt: skip
    with log.open("w") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line.startswith("ready: "):
                raise RuntimeError(log.read_text())
            yield Server(line.split()[1].removesuffix("/v1"), process.pid)
        finally:
            process.terminate()
            process.wait(60)


def endure(
    name: str, models: Sequence[str], load: Callable[[Server, bool], None]
) -> dict[str, Any]:
    """Drive a new server in two phases; returns what it held after each, and what is wrong.

    Args:
        name: part of the log file's name.
        load: function that sends requests to the server; called with False for the warm-up, then
            with True.
    """
    with serving(models, LOGS / f"paradecode-serve-{name}.log") as server:
        load(server, False)
        server.fill()
        before = server.settled()
        load(server, True)
        after = server.settled()
        leaks = complaints(before, after)
        question = {"prompt": "a", "max_tokens": 2}
        alive = httpx.post(f"{server.url}/v1/completions", json=question, timeout=60)
        if alive.status_code != 200:
            leaks.append(f"it answers with {alive.status_code}")
    return {"before": vars(before), "after": vars(after), "leaks": leaks}
