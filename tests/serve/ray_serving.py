"""A server on a Ray cluster of this machine, and the worker processes that belong to it."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Semaphore
from typing import Any

import httpx

from paradecode.serve.keys import plain_keys
from paradecode.serve.pool import Served
from paradecode.serve.server import bind
from paradecode.serve.settings import ServerSettings
from paradecode.serve.worker.__main__ import LOADED
from paradecode.serve.worker.settings import WorkerSettings

KEY = "a-key-for-this-test"


def settings_of(folder: str) -> ServerSettings:
    """Return settings with one model, and a port that is free now."""
    worker = WorkerSettings(model=folder, threads=1, limits={"kv_tokens": 32768, "batch": 16})
    settings = ServerSettings(models=(Served("tiny", worker),), port=0, keys=plain_keys([KEY]))
    listener = bind(settings)
    settings = replace(settings, port=listener.getsockname()[1], log_requests=False)
    listener.close()
    return settings


def descendants() -> dict[int, tuple[int, str]]:
    """Return pid -> (parent, name) of the processes that this test has started."""
    found: dict[int, tuple[int, str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            name = (folder / "comm").read_text().strip()
        except (OSError, ValueError):
            continue
        found[int(folder.name)] = parent, name

    def ours(pid: int) -> bool:
        while pid in found:
            pid = found[pid][0]
            if pid == os.getpid():
                return True
        return False

    return {pid: entry for pid, entry in found.items() if ours(pid)}


def workers() -> dict[int, int]:
    """Return pid of a worker process -> pid of its replica."""
    own = descendants()
    return {pid: parent for pid, (parent, name) in own.items() if name == LOADED.decode()}


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
        """Return text of the labels -> value of a metric."""
        page = self.client.get("/metrics").text
        lines = [line for line in page.splitlines() if line.startswith(f"paradecode:{name}{{")]
        return {line.split("}")[0].split("{")[1]: float(line.split()[-1]) for line in lines}


def streamed(
    server: Server, prompt: str, started: Semaphore, **body: Any
) -> tuple[list[int], float]:
    """Return the tokens of a stream, and the most seconds between two of its pieces.

    ``started`` is released when the stream has begun.
    """
    asked = {"prompt": prompt, "ignore_eos": True, "stream": True, "include_metrics": True, **body}
    tokens: list[int] = []
    moments, line = [], ""
    client = httpx.Client(base_url=server.client.base_url, headers=server.client.headers)
    with client, client.stream("POST", "/v1/completions", json=asked, timeout=300) as response:
        assert response.status_code == 200, response.read()
        for line in filter(None, response.iter_lines()):
            data = line.removeprefix("data: ")
            if line.startswith("data: ") and data != "[DONE]":
                event = json.loads(data)
                assert "error" not in event, event
                new = event.get("paradecode", {}).get("tokens", ())
                tokens += new
                moments += [time.monotonic()] if new else []
                if len(moments) == 30:
                    started.release()
    assert line == "data: [DONE]"
    return tokens, max(b - a for a, b in pairwise(moments))
