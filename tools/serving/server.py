"""A `paradecode serve` of one's own to torment, and what it holds: pages, memory, requests."""

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
"""How much more memory may be held after the torment than after its beginning."""

KV_TOKENS = "16384"
"""Tokens of K/V memory: few, so that all of it is soon touched."""

FILLING = 240
"""Tokens of a prompt that every model has room for."""

LOGS = Path(tempfile.gettempdir())

PATIENCE = 900.0
"""Seconds; a hostile request may well ask for eight answers as long as the context."""


@dataclass(frozen=True)
class Holdings:
    """Bytes of the front and of the workers, K/V pages in use, outputs that run or wait."""

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
        """Have all K/V memory of every model used once: what is new later would look like a leak.

        A page of a prompt is kept for prompts that begin alike while another one is free.
        """
        with httpx.Client(base_url=self.url, timeout=PATIENCE) as client:
            for model in client.get("/v1/models").json()["data"]:
                for number in range(int(KV_TOKENS) // FILLING + 1):
                    prompt = [1 + number % 200, 1 + number // 200, *[5] * (FILLING - 2)]
                    body = {"model": model["id"], "prompt": prompt, "max_tokens": 1}
                    client.post("/v1/completions", json=body).raise_for_status()

    def settled(self, seconds: float = 60.0) -> Holdings:
        """What it holds once nothing runs and freed memory has gone back.

        Raises:
            TimeoutError: something runs for ever.
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
    """What was leaked between two moments at which nothing ran."""
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
    """Start a server on a free port, with more options; its log goes to a file."""
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
    """What a server of its own held after the two phases of a load, and what is wrong with it.

    Args:
        name: of the log.
        load: drives the server; called with False to warm it up, then with True.
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
