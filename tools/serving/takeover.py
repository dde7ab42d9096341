"""How long a stream pauses when its worker is killed.

    python -m tools.serving.takeover [--streams 8] [--kills 5] [--out bench/results/takeover.json]

A server with one worker of the default model, then one with two. Streams run all the time; a worker
is killed (SIGKILL) again and again. The pause of a stream is the time between its last token before
a kill and its first one after it. Every output is compared with that of an undisturbed run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from statistics import median
from threading import Event
from typing import Any

import httpx

from paradecode.serve.worker.__main__ import LOADED
from tools.script import options, stamped, tell
from tools.serving.server import LOGS, Server, serving

MODEL = "smollm2-135m-instruct"
TEXTS = (
    "Repeat the list three times: copper, zinc, iron, copper, zinc, iron.",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n",
    "What is the capital of Norway, and what is it known for?",
    "Once upon a time there was a little dog who liked to",
)


def workers(front: int) -> list[int]:
    """The worker processes of a server that have a model; a spare one has none yet."""
    tasks = Path(f"/proc/{front}/task").glob("*/children")
    children = [int(pid) for task in tasks for pid in task.read_text().split()]
    name = {pid: Path(f"/proc/{pid}/comm").read_bytes().strip() for pid in children}
    return [pid for pid in children if name[pid] == LOADED]


def stream(server: Server, number: int, moments: list[float]) -> list[int]:
    """The tokens of a stream; ``moments`` gets the time of each piece."""
    body = {
        "prompt": TEXTS[number % len(TEXTS)], "seed": number, "temperature": 0.8, "stream": True,
        "max_tokens": 320, "ignore_eos": True, "include_metrics": True,
    }  # fmt: skip
    tokens: list[int] = []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=120) as response:
        for line in response.iter_lines():
            data = line.removeprefix("data: ")
            if line.startswith("data: ") and data != "[DONE]":
                event = json.loads(data)
                if "error" in event:
                    raise RuntimeError(event["error"]["message"])
                new = event.get("paradecode", {}).get("tokens", ())
                tokens += new
                moments += [time.monotonic()] if new else []
    return tokens


def disturbed(replicas: int, streams: int, kills: int) -> dict[str, Any]:
    """Pauses and differences over streams that run while workers are killed."""
    log, served = LOGS / "paradecode-serve-takeover.log", [MODEL, "--replicas", str(replicas)]
    with serving(served, log) as server, ThreadPoolExecutor(streams) as pool:
        wanted = list(pool.map(lambda n: stream(server, n, []), range(streams)))
        ended = Event()
        moments: list[list[float]] = []
        whole = different = 0
        lost: list[str] = []

        def ask(number: int) -> None:
            nonlocal whole, different
            while not ended.is_set():
                own: list[float] = []
                try:
                    same = stream(server, number, own) == wanted[number]
                except Exception as error:
                    lost.append(f"{type(error).__name__}: {error}")
                    continue
                whole, different = whole + 1, different + (not same)
                moments.append(own)

        asked = [pool.submit(ask, number) for number in range(streams)]
        killed, chance = [], random.Random(0)
        for _ in range(kills):
            time.sleep(6 + 2 * chance.random())
            victims = workers(server.pid)
            killed.append(time.monotonic())
            os.kill(chance.choice(victims), signal.SIGKILL)
        time.sleep(6)
        ended.set()
        for one in asked:
            one.result()
    pauses = [
        after - before
        for own in moments
        for before, after in pairwise(own)
        if any(before <= kill < after for kill in killed) and after - before > 0.2
    ]
    return {
        "workers": replicas, "streams": streams, "kills": kills, "outputs": whole,
        "different": different, "lost": lost, "paused": len(pauses),
        "median_pause": round(median(pauses), 2), "longest_pause": round(max(pauses), 2),
    }  # fmt: skip


def main() -> int:
    chosen = options(__doc__, streams=8, kills=5).parse_args()
    runs = [disturbed(replicas, chosen.streams, chosen.kills) for replicas in (1, 2)]
    tell(stamped(model=MODEL, runs=runs), chosen.out)
    return 1 if any(run["different"] or run["lost"] for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
