"""Loads a server with 200 tenants while workers are killed: no answer is lost, changed or leaked.

    python -m tools.serving.soak --minutes 30 --journal bench/out/soak.jsonl

The program starts a server with both families of models and two workers of each. First every
question is asked once, undisturbed. Then clients ask the same questions in any order, as random
tenants, with and without streams, with any exact method, and every answer must equal the first one.
Other clients leave in the middle, read slowly, or send hostile requests. Every ``--kill-seconds``
the oldest worker is killed (SIGKILL). An answer is lost if a proper request was accepted (status
200) and its answer did not end, or if it was refused for another reason than a full queue. The
memory of the front process at rest may grow by 2 %, and so may that of workers of equal age just
before they are killed. The journal has a line for each answer, each kill and each measurement of
memory. The exit status is 1 if anything is wrong.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from threading import Event, Lock
from typing import Any

import httpx

from paradecode.serve.worker.__main__ import LOADED
from tools.peers.process import status_bytes
from tools.script import OUT, options, stamped, tell
from tools.serving.fuzz import attack
from tools.serving.server import LOGS, MEMORY_BOUND, PATIENCE, Server, serving

WARM_UP = 0.2
"""Share of the time after which memory is first measured."""

MODELS = ("smollm2-135m-instruct", "tiny-diffusion")
EXACT = (None, "none", "prompt-lookup", "copyspec", "suffix", "token-recycling", "stand",
         {"method": "prompt-lookup", "num_speculative_tokens": 4})  # fmt: skip
CANVAS = ("static", "threshold", "prophet")
WORDS = ("copper", "a b c a b c", "the capital of Norway", "1, 2, 3, 4,", "def f(x):", "é ü 漢字")
SCHEMA = {
    "type": "object", "required": ["name", "legs"],
    "properties": {"name": {"type": "string", "maxLength": 12}, "legs": {"enum": [2, 4, 8]}},
}  # fmt: skip
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
Question = tuple[str, dict[str, Any]]


def question(number: int) -> Question:
    """Return a proper request that has only one possible answer."""
    chance = random.Random(number)
    canvas = number % 4 == 3
    # The small diffusion model has a context of 256 tokens, and its tokens are single letters.
    words, tokens = (4, 128) if canvas else (40, 160)
    text = " ".join(chance.choices(WORDS, k=chance.randrange(1, words)))
    body: dict[str, Any] = {
        "model": MODELS[canvas], "max_tokens": chance.randrange(8, tokens), "seed": number,
        "temperature": chance.choice((0, 0.8)), "n": chance.choice((1, 1, 1, 2)),
    }  # fmt: skip
    if canvas:
        body["speculative"] = chance.choice(CANVAS)
        return "/v1/completions", {**body, "prompt": f"reverse: {text}"}
    if chance.random() < 0.3:
        body["stop"] = ["\n", "capital"]
    if chance.random() < 0.2:
        body |= {"logprobs": True, "top_logprobs": 2}
    kind = number % 5
    if kind == 1:
        schema = {"name": "x", "schema": SCHEMA}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif kind == 2:
        body |= {"tools": [TOOL], "tool_choice": "required", "n": 1}
    elif kind == 3:
        body["guided_regex"] = "[A-Z][a-z]{2,40}( [a-z]{2,20}){3,9}\\."
    return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": text}]}


def shown(choice: dict[str, Any]) -> list[str]:
    """Return what a choice or a piece of one contains.

    The texts are: output, tokens with scores, names and arguments of calls, and the finish reason.
    """
    said = choice.get("message") or choice.get("delta") or choice
    calls = [call["function"] for call in said.get("tool_calls") or ()]
    entries = (choice.get("logprobs") or {}).get("content") or ()
    return [
        said.get("content") or said.get("text") or "",
        "".join(f"{entry['token']} {entry['logprob']:.3f}, " for entry in entries),
        "".join(call.get("name") or "" for call in calls),
        "".join(call.get("arguments") or "" for call in calls),
        choice.get("finish_reason") or "",
    ]


def joined(pieces: list[list[str]]) -> list[str]:
    return ["".join(parts) for parts in zip(*pieces)]


def ask(client: httpx.Client, asked: Question, slowly: float = 0.0) -> tuple[Any, float] | None:
    """Return the choices of an answer and its longest pause in seconds; None if the queue was full.

    Raises:
        RuntimeError: the request was refused for another reason, or its answer did not end.
    """
    route, body = asked
    pieces: dict[int, list[list[str]]] = {}
    with client.stream("POST", route, json=body) as response:
        if response.status_code in (429, 503):
            time.sleep(min(float(response.headers["retry-after"]), 5.0))
            return None
        if response.status_code != 200:
            raise RuntimeError(f"{response.status_code} {response.read()!r}")
        if not body.get("stream"):
            choices = json.loads(response.read())["choices"]
            return [joined([shown(choice)]) for choice in choices], 0.0
        last, longest, line = time.monotonic(), 0.0, ""
        for line in filter(None, response.iter_lines()):
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            if "error" in event:
                raise RuntimeError(line)
            for choice in event["choices"]:
                pieces.setdefault(choice["index"], []).append(shown(choice))
            now = time.monotonic()
            longest, last = max(longest, now - last), now
            time.sleep(slowly)
        if line != "data: [DONE]":
            raise RuntimeError(f"cut off behind {line!r}")
    return [joined(pieces[index]) for index in sorted(pieces)], longest


class Load:
    """Runs clients for a while, counts the outcomes of their requests, and writes the journal."""

    def __init__(self, seed: int, clients: int, tenants: int, questions: int, to: Path) -> None:
        self.seed, self.clients, self.tenants = seed, clients, tenants
        self.questions = [question(number) for number in range(questions)]
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.pauses: list[float] = []
        to.parent.mkdir(parents=True, exist_ok=True)
        self._journal, self._lock, self._begun = to.open("w"), Lock(), time.monotonic()

    def note(self, **facts: Any) -> None:
        with self._lock:
            when = round(time.monotonic() - self._begun, 2)
            self._journal.write(json.dumps({"at": when, **facts}) + "\n")
            self._journal.flush()

    def undisturbed(self, server: Server) -> None:
        """Ask every question once. All later answers must equal these answers."""
        with ThreadPoolExecutor(4) as pool, httpx.Client(base_url=server.url, timeout=99) as client:
            found = list(pool.map(lambda one: ask(client, one), self.questions))
        assert all(found), "the queue was full"
        self.answers = [answer for answer, _ in filter(None, found)]

    def run(self, server: Server, seconds: float, round: int) -> None:
        self.server = server
        end = time.monotonic() + seconds
        kinds = (self.proper, self.proper, self.proper, self.leaver, self.slow, self.hostile)
        with ThreadPoolExecutor(self.clients) as pool:
            for i in range(self.clients):
                pool.submit(self._repeat, kinds[i % len(kinds)], round * 1000 + i, end)

    def _repeat(self, what: Any, number: int, end: float) -> None:
        chance = random.Random(f"{self.seed}.{number}")
        with httpx.Client(base_url=self.server.url, timeout=PATIENCE) as client:
            while time.monotonic() < end:
                try:
                    told = what(client, chance)
                except Exception as error:
                    told = "lost"
                    self.wrong.append(f"{what.__name__}: {type(error).__name__}: {error}"[:500])
                    self.note(wrong=self.wrong[-1])
                self.counts[told] += 1

    def proper(self, client: httpx.Client, chance: random.Random, slowly: float = 0.0) -> str:
        number, tenant = chance.randrange(len(self.questions)), chance.randrange(self.tenants)
        route, body = self.questions[number]
        body = {**body, "cache_salt": f"tenant {tenant}", "priority": chance.choice((0, 0, 1, -1))}
        if body["model"] == MODELS[0]:
            method = chance.choice(EXACT)
            body |= {} if method is None else {"speculative": method}
        if slowly or chance.random() < 0.6:
            body["stream"] = True
        answer = ask(client, (route, body), slowly)
        if answer is None:
            return "refused"
        found, pause = answer
        self.pauses.append(pause)
        same = found == self.answers[number]
        self.note(question=number, tenant=tenant, pause=round(pause, 2), same=same)
        if not same:
            said = f"question {number}: {found} in place of {self.answers[number]}"
            self.wrong.append(said[:2000])
        return "answered" if same else "different"

    def slow(self, client: httpx.Client, chance: random.Random) -> str:
        told = self.proper(client, chance, slowly=0.02)
        return "read slowly" if told == "answered" else told

    def leaver(self, client: httpx.Client, chance: random.Random) -> str:
        route, body = chance.choice(self.questions)
        with client.stream("POST", route, json={**body, "stream": True}) as got:
            for _ in zip(range(chance.randrange(6)), got.iter_bytes()):
                pass
        return "left"

    def hostile(self, client: httpx.Client, chance: random.Random) -> str:
        attack(self.server, client, chance.randrange(1 << 40), self.seed)
        return "hostile"


def workers(front: int) -> list[int]:
    """Return the ids of a server's worker processes that have loaded a model."""
    tasks = Path(f"/proc/{front}/task").glob("*/children")
    children = [int(pid) for task in tasks for pid in task.read_text().split()]
    name = {pid: Path(f"/proc/{pid}/comm").read_bytes().strip() for pid in children}
    return [pid for pid in children if name[pid] == LOADED]


def killing(load: Load, server: Server, seconds: float, ended: Event) -> list[tuple[str, int]]:
    """Kill the oldest worker every ``seconds`` seconds, until ``ended`` is set.

    Returns the model and the bytes of each killed worker that had lived through enough rounds.
    """
    seen = dict.fromkeys(workers(server.pid), 0)
    ages: list[tuple[str, int]] = []
    while not ended.wait(seconds):
        alive = workers(server.pid)
        seen = {pid: seen.get(pid, 0) + 1 for pid in alive}
        victim = max(alive, key=seen.__getitem__)
        held = {pid: status_bytes(pid, "VmRSS") for pid in alive}
        family = served_by(victim)
        if seen[victim] >= len(alive):
            ages.append((family, held[victim]))
        os.kill(victim, signal.SIGKILL)
        load.note(killed=victim, serves=family, age=seen[victim],
                  workers=held, front=status_bytes(server.pid, "VmRSS"))  # fmt: skip
    return ages


def served_by(pid: int) -> str:
    """Return the model that a worker has loaded, from the names of the files that it has mapped."""
    maps = Path(f"/proc/{pid}/maps").read_text()
    return MODELS["tiny-diffusion" in maps or "tiny_diffusion" in maps]


def grown(ages: list[tuple[str, int]]) -> list[str]:
    """Return complaints about workers that were killed late and held more than those killed early.

    Only workers of the same age are compared.
    """
    found = []
    for family in MODELS:
        held = [size for name, size in ages if name == family]
        third = len(held) // 3
        if third >= 2 and median(held[-third:]) > (1 + MEMORY_BOUND) * median(held[:third]):
            found.append(f"workers of {family}: {held[:third]} became {held[-third:]}")
    return found


def main() -> int:
    parser = options(__doc__, minutes=30.0, clients=24, tenants=200, questions=60, seed=0)
    parser.add_argument("--kill-seconds", type=float, default=60.0)
    parser.add_argument("--journal", type=Path, default=OUT / "soak.jsonl")
    chosen = parser.parse_args()
    load = Load(chosen.seed, chosen.clients, chosen.tenants, chosen.questions, chosen.journal)
    seconds, ended = chosen.minutes * 60, Event()
    with serving([*MODELS, "--replicas", "2"], LOGS / "paradecode-serve-soak.log") as server:
        load.undisturbed(server)
        load.run(server, seconds * WARM_UP, 0)
        before = server.settled()
        with ThreadPoolExecutor(1) as pool:
            ages = pool.submit(killing, load, server, chosen.kill_seconds, ended)
            load.run(server, seconds * (1 - WARM_UP), 1)
            ended.set()
        after = server.settled()
    leaks = grown(ages.result())
    if after.front > before.front * (1 + MEMORY_BOUND):
        leaks.append(f"front: {before.front >> 20} MB became {after.front >> 20} MB")
    result = stamped(
        minutes=chosen.minutes,
        clients=chosen.clients,
        tenants=chosen.tenants,
        kills=after.restarts - before.restarts,
        requests=dict(sorted(load.counts.items())),
        longest_pause=round(max(load.pauses, default=0.0), 2),
        wrong=len(load.wrong),
        first_wrong=load.wrong[:3],
        before=vars(before),
        after=vars(after),
        killed_with_bytes=ages.result(),
        leaks=leaks,
    )
    tell(result, chosen.out)
    return 1 if load.wrong or leaks else 0


if __name__ == "__main__":
    sys.exit(main())
