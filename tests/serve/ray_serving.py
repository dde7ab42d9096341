"""A server on a Ray cluster of this machine, and the worker processes that belong to it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from paradecode.serve.pool import Served
from paradecode.serve.server import bind
from paradecode.serve.settings import ServerSettings
from paradecode.serve.worker.settings import WorkerSettings

KEY = "a-key-for-this-test"


def settings_of(folder: str) -> ServerSettings:
    """One model, on a port that is free now."""
    worker = WorkerSettings(model=folder, threads=1, limits={"kv_tokens": 32768, "batch": 16})
    settings = ServerSettings(models=(Served("tiny", worker),), port=0, keys=(KEY,))
    listener = bind(settings)
    settings = replace(settings, port=listener.getsockname()[1], log_requests=False)
    listener.close()
    return settings


def descendants() -> dict[int, tuple[int, str]]:
    """Pid -> (parent, command line) of what this test has started."""
    found: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except (OSError, ValueError):
            continue
        found[int(folder.name)] = parent, line

    def ours(pid: int) -> bool:
        while pid in found:
            pid = found[pid][0]
            if pid == os.getpid():
                return True
        return False

    return {pid: entry for pid, entry in found.items() if ours(pid)}


def workers() -> dict[int, int]:
    """Worker process -> the replica that it belongs to."""
    own = descendants()
    return {pid: parent for pid, (parent, line) in own.items() if "paradecode.serve.worker" in line}


def until(truth: Callable[[], bool], seconds: float = 120.0) -> None:
    limit = time.monotonic() + seconds
    while not truth():
        assert time.monotonic() < limit, "it did not come true"
        time.sleep(0.2)


class Server:
    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.client = httpx.Client(
            base_url=f"http://127.0.0.1:{settings.port}",
            timeout=120,
            headers={"authorization": f"Bearer {KEY}"},
        )

    def complete(self, prompt: str, **body: Any) -> httpx.Response:
        asked = {"prompt": prompt, "temperature": 0, "max_tokens": 16, **body}
        return self.client.post("/v1/completions", json=asked)

    def metric(self, name: str) -> dict[str, float]:
        """Label text -> value."""
        page = self.client.get("/metrics").text
        lines = [line for line in page.splitlines() if line.startswith(f"paradecode:{name}{{")]
        return {line.split("}")[0].split("{")[1]: float(line.split()[-1]) for line in lines}
