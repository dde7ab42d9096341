"""Prefix-aware routing beside round robin: how much the caches hit, and the first token's time.

    python -m tools.serving.routing [--rounds 4] [--out bench/results/routing.json]

Two replicas of the default model under Ray on this machine. Eight conversations of about 400 tokens
are asked about in turns, four at a time, each question a new one, in an order that is shuffled with
a seed. The same questions go through this project's router and through one that takes the replicas
in turn, each on fresh replicas. Every text is compared between the two.
"""

from __future__ import annotations

import json
import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count
from statistics import mean, median
from typing import Any

import httpx
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from paradecode.serve.pool import Served
from paradecode.serve.ray import deploy
from paradecode.serve.server import bind
from paradecode.serve.settings import ServerSettings
from paradecode.serve.worker.settings import WorkerSettings
from tools.script import options, stamped, tell

TOPICS = ("copper", "rivers", "bread", "clocks", "owls", "maps", "salt", "bridges")
AT_ONCE = 4


class RoundRobin(RequestRouter):
    """Replicas in turn."""

    def initialize_state(self, **kwargs: object) -> None:
        self._turns = count()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        order = sorted(candidate_replicas, key=lambda one: one.replica_id.unique_id)
        at = next(self._turns) % max(len(order), 1)
        return [[one] for one in (*order[at:], *order[:at])]


def prompts(rounds: int) -> list[str]:
    """Each conversation comes back ``rounds`` times, with another question at its end."""
    asked = [
        " ".join(f"{topic} fact {number} is known." for number in range(60)) + f" Question {turn}:"
        for turn in range(rounds)
        for topic in TOPICS
    ]
    random.Random(0).shuffle(asked)
    return asked


def ask(url: str, prompt: str) -> dict[str, Any]:
    """Seconds to the first token, tokens of the prompt, those that a cache had, and the text."""
    body = {"prompt": prompt, "max_tokens": 16, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}  # fmt: skip
    usage: dict[str, Any] = {}
    began, first, text = time.monotonic(), 0.0, ""
    with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=120) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise RuntimeError(event["error"]["message"])
                text += "".join(choice["text"] for choice in event["choices"])
                first = first or time.monotonic() - began
                usage = event.get("usage") or usage
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    return {"first": first, "prompt": usage["prompt_tokens"], "cached": cached, "text": text}


def measure(router: type[RequestRouter], rounds: int) -> list[dict[str, Any]]:
    worker = WorkerSettings(threads=1, limits={"kv_tokens": 16384})
    settings = ServerSettings(models=(Served("text", worker),), port=0, log_requests=False)
    listener = bind(settings)
    settings = replace(settings, port=listener.getsockname()[1])
    listener.close()
    url = f"http://127.0.0.1:{settings.port}"
    deploy.PrefixRouter = router  # type: ignore[misc]
    with deploy.cluster(cpus=2):
        deploy.deploy(settings, deploy.Scaling(replicas=2))
        for _ in range(4):
            ask(url, "Warm up.")
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return list(pool.map(lambda prompt: ask(url, prompt), prompts(rounds)))


def main() -> int:
    chosen = options(__doc__, rounds=4).parse_args()
    routers = {"prefix": deploy.PrefixRouter, "round robin": RoundRobin}
    found = {name: measure(router, chosen.rounds) for name, router in routers.items()}
    rows = {
        name: {
            "requests": len(answers),
            "hit_rate": round(mean(one["cached"] / one["prompt"] for one in answers), 3),
            "median_first_token": round(median(one["first"] for one in answers), 3),
            "mean_first_token": round(mean(one["first"] for one in answers), 3),
        }
        for name, answers in found.items()
    }
    texts = [[one["text"] for one in answers] for answers in found.values()]
    same = sum(a == b for a, b in zip(*texts))
    tell(stamped(rounds=chosen.rounds, at_once=AT_ONCE, same_texts=same, routers=rows), chosen.out)
    return 0 if same == len(texts[0]) else 1


if __name__ == "__main__":
    sys.exit(main())
