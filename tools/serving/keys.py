"""How long one key waits while another asks for as much as it can.

    python -m tools.serving.keys [--rounds 3] [--out bench/results/serve_keys.json]

A modest client asks one short question after another. A greedy key has many clients, in a process
of their own, that ask for long answers without a pause. The modest one's seconds are measured
alone, beside them with a key of its own, with their key (the control: what fair shares save it
from), and with a key of its own while theirs may have few outputs at the same time. The worker's
own seconds, from its queue to the last token, stand beside. Exit status 1 if the median beside
them, or with few outputs, is more than twice that alone, or if it is not so in the control.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx

from paradecode.models.catalogue import DEFAULT
from paradecode_lab.measure.prompts import load_prompts
from tools.script import options, stamped, tell
from tools.serving.server import LOGS, serving

MODEST, GREEDY, BOUNDED = "key-of-the-modest", "key-of-the-greedy", "key-of-the-bounded"
FEW = 2
"""Outputs at the same time of the bounded key."""

PHASES = {
    "alone": (MODEST, None),
    "beside": (MODEST, GREEDY),
    "one key": (GREEDY, GREEDY),
    "bounded": (MODEST, BOUNDED),
}
"""What is measured: the modest client's key, and the greedy ones'."""

KEYS = {
    "modest": {"key": MODEST},
    "greedy": {"key": GREEDY},
    "bounded": {"key": BOUNDED, "sequences": FEW},
}
TOKENS, MANY = 32, 128
SETTLE = 4.0
"""Seconds that the greedy clients have to start and to fill the batch."""


def ask(client: httpx.Client, key: str, prompt: str, tokens: int) -> tuple[float, float]:
    """Seconds of one answer of so many tokens, and those that its worker took for it."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
            "include_metrics": True}  # fmt: skip
    began = time.perf_counter()
    headers = {"authorization": f"Bearer {key}"}
    answer = client.post("/v1/completions", json=body, headers=headers).raise_for_status().json()
    taken = time.perf_counter() - began
    own = answer["metrics"]["seconds"]
    return taken, own["queue"] + own["prompt"] + own["decode"]


def greedy(url: str, key: str, clients: int, over: Event) -> None:
    """Send requests without a pause from so many clients, until ``over`` is set."""
    prompts = [one.turns[0] for one in load_prompts()]

    def run(number: int) -> None:
        with httpx.Client(base_url=url, timeout=600) as client:
            while not over.is_set():
                number += clients
                ask(client, key, f"{number}. {prompts[number % len(prompts)]}", MANY)

    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(run, range(clients)))


@contextmanager
def crowd(url: str, key: str | None, clients: int) -> Iterator[None]:
    """The greedy clients, once they had the time to fill the batch; none without a key."""
    if key is None:
        yield
        return
    start = get_context("spawn")
    over = start.Event()
    process = start.Process(target=greedy, args=(url, key, clients, over))
    process.start()
    time.sleep(SETTLE)
    try:
        yield
    finally:
        over.set()
        process.join()
    if process.exitcode != 0:
        raise RuntimeError("a greedy client failed")


def measure(
    url: str, rounds: int, requests: int, clients: int
) -> dict[str, list[tuple[float, float]]]:
    """Seconds of the modest client's requests in each phase; phases take turns."""
    found: dict[str, list[tuple[float, float]]] = {phase: [] for phase in PHASES}
    with httpx.Client(base_url=url, timeout=600) as client:
        for number in range(rounds):
            for phase, (own, other) in PHASES.items():
                with crowd(url, other, clients):
                    for each in range(requests):
                        text = f"{phase} {number} {each}: what is a river?"
                        found[phase].append(ask(client, own, text, TOKENS))
    return found


def summary(found: dict[str, list[tuple[float, float]]]) -> list[dict[str, Any]]:
    """By phase: seconds, and how many times those alone."""
    rows: list[dict[str, Any]] = []
    for phase, seconds in found.items():
        taken, worker = zip(*seconds, strict=True)
        rows.append({"phase": phase, "requests": len(taken), "median": round(median(taken), 4),
                     "p90": round(quantiles(taken, n=10)[-1], 4),
                     "worker": round(median(worker), 4)})  # fmt: skip
    return [{**row, "times": round(row["median"] / rows[0]["median"], 2)} for row in rows]


def main() -> int:
    given = options(__doc__, rounds=3, requests=8, clients=32).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys.json"
        file.write_text(json.dumps(KEYS), "utf-8")
        log = LOGS / "paradecode-serve-keys.log"
        with serving([DEFAULT, "--keys", str(file)], log) as server:
            found = measure(server.url, given.rounds, given.requests, given.clients)
    rows = summary(found)
    tell(
        stamped(
            model=DEFAULT, greedy_clients=given.clients, tokens=TOKENS, greedy_tokens=MANY,
            bounded_outputs=FEW, phases=rows,
        ),
        given.out,
    )  # fmt: skip
    times = {row["phase"]: row["times"] for row in rows}
    return int(max(times["beside"], times["bounded"]) > 2 or times["one key"] <= 2)


if __name__ == "__main__":
    sys.exit(main())
