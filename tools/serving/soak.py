"""Mixed load for half an hour: no request that was accepted may be lost, and nothing may leak.

    python -m tools.serving.soak --minutes 30

Starts a server of its own. Clients ask properly (with and without streams), leave in the middle,
read slowly, and send nonsense. An answer is lost when a proper request was accepted (status 200)
and did not come to its end, or when it was refused for any reason but a full queue. Exit status 1
if one was lost or something leaked.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tools.script import options, stamped, tell
from tools.serving.fuzz import attack
from tools.serving.server import PATIENCE, Server, endure

WARM_UP = 0.2
"""Share of the time after which memory is first measured."""

METHODS = (None, "none", "prompt-lookup", "copyspec", "suffix", "token-recycling",
           {"method": "prompt-lookup", "num_speculative_tokens": 4})  # fmt: skip
WORDS = ("copper", "a b c a b c", "the capital of Norway", "1, 2, 3, 4,", "def f(x):", "é ü 漢字")


def question(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """A proper request."""
    text = " ".join(chance.choices(WORDS, k=chance.randrange(1, 40)))
    body: dict[str, Any] = {
        "max_tokens": chance.randrange(1, 96),
        "temperature": chance.choice((0, 0.8)),
        "n": chance.choice((1, 1, 1, 2)),
        "stream": chance.random() < 0.6,
        "stop": chance.choice((None, ["\n"])),
        "priority": chance.choice((0, 0, 1, -1)),
    }
    method = chance.choice(METHODS)
    if method is not None:
        body["speculative"] = method
    if chance.random() < 0.15:
        body["response_format"] = {"type": "json_object"}
    if chance.random() < 0.5:
        return "/v1/completions", {**body, "prompt": text}
    return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}]}


class Load:
    """Clients that run for ``seconds``; what became of their requests is counted."""

    def __init__(self, seed: int, clients: int, seconds: float) -> None:
        self.seed, self.clients, self.seconds = seed, clients, seconds
        self.counts: Counter[str] = Counter()
        self.lost: list[str] = []

    def run(self, server: Server, warmed: bool) -> None:
        self.server = server
        end = time.monotonic() + self.seconds * (1 - WARM_UP if warmed else WARM_UP)
        kinds = (self.proper, self.proper, self.proper, self.leaver, self.slow, self.hostile)
        with ThreadPoolExecutor(self.clients) as pool:
            for i in range(self.clients):
                pool.submit(self._repeat, kinds[i % len(kinds)], warmed * 1000 + i, end)

    def _repeat(self, what: Any, number: int, end: float) -> None:
        chance = random.Random(f"{self.seed}.{number}")
        with httpx.Client(base_url=self.server.url, timeout=PATIENCE) as client:
            while time.monotonic() < end:
                try:
                    self.counts[what(client, chance)] += 1
                except Exception as error:
                    self.lost.append(f"{what.__name__}: {type(error).__name__}: {error}"[:500])

    def proper(self, client: httpx.Client, chance: random.Random) -> str:
        route, body = question(chance)
        response = client.post(route, json=body)
        if response.status_code in (429, 503):
            time.sleep(min(float(response.headers["retry-after"]), 5.0))
            return "refused"
        assert response.status_code == 200, f"{response.status_code} {response.text}"
        if body["stream"]:
            assert response.text.endswith("data: [DONE]\n\n"), response.text[-300:]
            assert response.text.count('"finish_reason":"') == body["n"], response.text[-300:]
        else:
            choices = response.json()["choices"]
            assert len(choices) == body["n"]
            assert all(choice["finish_reason"] for choice in choices)
        return "answered"

    def leaver(self, client: httpx.Client, chance: random.Random) -> str:
        route, body = question(chance)
        with client.stream("POST", route, json={**body, "stream": True, "max_tokens": 200}) as got:
            for _ in zip(range(chance.randrange(6)), got.iter_bytes()):
                pass
        return "left"

    def slow(self, client: httpx.Client, chance: random.Random) -> str:
        route, body = question(chance)
        with client.stream("POST", route, json={**body, "stream": True}) as got:
            if got.status_code != 200:
                return "refused"
            text = b""
            for piece in got.iter_bytes(512):
                text += piece
                time.sleep(0.05)
        assert text.endswith(b"data: [DONE]\n\n"), text[-300:]
        return "read slowly"

    def hostile(self, client: httpx.Client, chance: random.Random) -> str:
        attack(self.server, client, chance.randrange(1 << 40), self.seed)
        return "hostile"


def main() -> int:
    parser = options(__doc__, minutes=30.0, clients=24, seed=0)
    parser.add_argument("--models", nargs="*", default=["tiny=smollm2-135m-instruct"])
    chosen = parser.parse_args()
    load = Load(chosen.seed, chosen.clients, chosen.minutes * 60)
    held = endure("soak", chosen.models, load.run)
    result = stamped(
        minutes=chosen.minutes,
        clients=chosen.clients,
        requests=dict(sorted(load.counts.items())),
        lost=len(load.lost),
        first_lost=load.lost[:3],
        **held,
    )
    tell(result, chosen.out)
    return 1 if load.lost or held["leaks"] else 0


if __name__ == "__main__":
    sys.exit(main())
