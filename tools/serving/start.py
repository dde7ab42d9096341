"""Measures the seconds from the command `paradecode serve` to its first answer.

python -m tools.serving.start [--starts 5] [--out bench/results/serve_start.json]
"""

from __future__ import annotations

import statistics
import time

import httpx

from paradecode.models.catalogue import DEFAULT
from tools.script import options, stamped, tell
from tools.serving.server import LOGS, serving

ASKED = {"messages": [{"role": "user", "content": "Name a metal."}], "max_tokens": 8}


def start() -> tuple[float, float]:
    """Start a server; returns the seconds until it is ready, and until its first answer ends."""
    began = time.perf_counter()
    with serving([DEFAULT], LOGS / "paradecode-serve-start.log") as server:
        ready = time.perf_counter() - began
        answer = httpx.post(f"{server.url}/v1/chat/completions", json=ASKED, timeout=60)
        answer.raise_for_status()
        return ready, time.perf_counter() - began


def main() -> None:
    given = options(__doc__, starts=5).parse_args()
    ready, answered = zip(*(start() for _ in range(given.starts)), strict=True)
    tell(
        stamped(
            model=DEFAULT, starts=given.starts, ready=round(statistics.median(ready), 2),
            answered=round(statistics.median(answered), 2), slowest=round(max(answered), 2),
        ),
        given.out,
    )  # fmt: skip


if __name__ == "__main__":
    main()
