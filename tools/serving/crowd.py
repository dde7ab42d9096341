"""Lets 64 clients ask one server at once, with mixed methods, families and constraints.

    python -m tools.serving.crowd [--clients 64] [--rounds 3] [--out bench/results/serve_crowd.json]

The program starts a server with an autoregressive and a diffusion model. Every client asks its
questions one after the other. Each question has its own method: an exact method of the first model
or a method of the second, and structured output on both models. Afterwards the library answers the
same questions alone, with plain decoding. The exit status is 1 unless every answer is complete, the
tokens of every exact method equal the library's, and every structured output is valid.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from threading import Barrier
from typing import Any

import httpx
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from paradecode import LLM
from tools.script import options, stamped, tell
from tools.serving.server import LOGS, Server, serving

AUTOREGRESSIVE, DIFFUSION = "smollm2-135m-instruct", "tiny-diffusion"
EXACT = (
    "none", "prompt-lookup", "copyspec", "suffix", "token-recycling", "jacobi", "layer-skip",
    {"method": "prompt-lookup", "num_speculative_tokens": 4}, "suffix+token-recycling",
)  # fmt: skip
CANVAS = ("static", "threshold", "prophet")
PLAIN = {AUTOREGRESSIVE: "greedy", DIFFUSION: "static"}
TEXTS = (
    "Repeat the list three times: copper, zinc, iron, copper, zinc, iron.",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n",
    "What is the capital of Norway, and what is it known for?",
    "Once upon a time there was a little dog who liked to",
)
SCHEMA = {
    "type": "object", "additionalProperties": False, "required": ["name", "colour", "legs"],
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "colour": {"enum": ["red", "green", "blue"]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 8},
    },
}  # fmt: skip
PATTERN = "[A-Z][a-z]{2,8} is (big|small)\\."


@dataclass
class Asked:
    """A question, and the server's answer.

    Attributes:
        body: the JSON body of the request.
        exact: whether the method promises the tokens of plain decoding.
        status: HTTP status of the answer.
        tokens, text, finish: token ids, text and finish reason of the answer.
        began, ended: when the request was sent, and when the answer ended, in seconds.
    """

    body: dict[str, Any]
    exact: bool
    status: int = 0
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = ""
    began: float = 0.0
    ended: float = 0.0

    @property
    def kind(self) -> str:
        """Return the family of the model, and the kind of the output's constraint, or ``text``."""
        family = "diffusion" if self.body["model"] == DIFFUSION else "autoregressive"
        constraint = next(
            (name for name in ("guided_json", "guided_regex") if name in self.body), ""
        )
        return f"{family} {constraint.removeprefix('guided_') or 'text'}"


def question(number: int) -> Asked:
    """Return a question of the mix.

    Half of the questions are structured, a quarter asks the diffusion model, and a quarter is
    sampled.
    """
    diffusion = number % 4 == 3
    body: dict[str, Any] = {
        "model": DIFFUSION if diffusion else AUTOREGRESSIVE,
        "prompt": TEXTS[number // 3 % len(TEXTS)],
        "max_tokens": 48, "temperature": 0.0, "stream": True, "include_metrics": True,
    }  # fmt: skip
    methods = CANVAS if diffusion else EXACT
    method = methods[number // 4 % len(methods)]
    body["speculative"] = method
    if not diffusion and number % 2:
        body |= {"temperature": 0.8, "seed": number}
    if number % 3 == 1:
        body |= {"guided_json": SCHEMA, "max_tokens": 80}
    elif number % 3 == 2 and number % 2:
        body |= {"guided_regex": PATTERN}
    else:
        body |= {"ignore_eos": True}
    return Asked(body, not diffusion or method == PLAIN[DIFFUSION])


def ask(client: httpx.Client, asked: Asked) -> None:
    asked.began = time.monotonic()
    with client.stream("POST", "/v1/completions", json=asked.body) as response:
        asked.status = response.status_code
        for line in response.iter_lines():
            data = line.removeprefix("data: ")
            if not line.startswith("data: ") or data == "[DONE]":
                continue
            event = json.loads(data)
            seen = event.get("paradecode", {})
            asked.tokens += seen.get("tokens", ())
            for choice in event.get("choices", ()):
                asked.text += choice["text"]
                asked.finish = choice["finish_reason"] or asked.finish
    asked.ended = time.monotonic()


def most_at_once(asked: list[Asked]) -> int:
    """Return the largest number of requests that ran at the same time."""
    moments = sorted([(one.began, 1) for one in asked] + [(one.ended, -1) for one in asked])
    return max(accumulate(change for _, change in moments))


def crowd(server: Server, clients: int, rounds: int) -> list[Asked]:
    """Ask all questions, and return them with their answers.

    All clients send their first question at the same moment.
    """
    asked = [question(number) for number in range(clients * rounds)]
    together = Barrier(clients)

    def run(number: int) -> None:
        with httpx.Client(base_url=server.url, timeout=900) as client:
            client.get("/health")
            together.wait()
            for one in asked[number::clients]:
                ask(client, one)

    with ThreadPoolExecutor(clients) as pool:
        pool.map(run, range(clients))
    return asked


def offline(llm: LLM, asked: Asked) -> list[int]:
    """Return the tokens that the library gives when it answers alone, with plain decoding."""
    body = asked.body
    names = ("max_tokens", "temperature", "seed", "ignore_eos")
    settings: dict[str, Any] = {name: body[name] for name in names if name in body}
    if "guided_json" in body:
        settings["constraint"] = {"type": "json_schema", "value": body["guided_json"]}
    if "guided_regex" in body:
        settings["constraint"] = {"type": "regex", "value": body["guided_regex"]}
    return llm.complete(body["prompt"], decoder=PLAIN[body["model"]], **settings).token_ids


def valid(asked: Asked) -> bool:
    """Decide whether a structured output meets its constraint. It must have ended by itself."""
    if asked.finish != "stop":
        return False
    if "guided_regex" in asked.body:
        return re.fullmatch(asked.body["guided_regex"], asked.text) is not None
    return bool(Draft202012Validator(SCHEMA).is_valid(json.loads(asked.text)))


def judge(asked: list[Asked]) -> tuple[dict[str, Counter[str]], list[str]]:
    """Count the outcomes of each kind of question, and describe everything that is wrong."""
    counts: dict[str, Counter[str]] = {}
    wrong: list[str] = []
    for model in PLAIN:
        with LLM(model) as llm:
            for one in asked:
                if one.body["model"] != model:
                    continue
                count = counts.setdefault(one.kind, Counter())
                count["asked"] += 1
                where = f"{one.kind}, {one.body['speculative']}, {one.body['prompt'][:20]!r}"
                if one.status != 200 or not one.finish:
                    wrong.append(f"{where}: status {one.status}, {one.finish or 'cut off'}")
                    continue
                count["tokens"] += len(one.tokens)
                if one.exact:
                    same = one.tokens == offline(llm, one)
                    count["equal" if same else "different"] += 1
                    wrong += [] if same else [f"{where}: other tokens"]
                if not one.kind.endswith("text"):
                    count["valid" if valid(one) else "invalid"] += 1
                    wrong += [] if valid(one) else [f"{where}: {one.finish} {one.text!r}"]
    return counts, wrong


def main() -> int:
    given = options(__doc__, clients=64, rounds=3).parse_args()
    with serving([AUTOREGRESSIVE, DIFFUSION], LOGS / "paradecode-serve-crowd.log") as server:
        began = time.monotonic()
        asked = crowd(server, given.clients, given.rounds)
        seconds = time.monotonic() - began
        after = server.settled()
    counts, wrong = judge(asked)
    result = stamped(
        models=list(PLAIN),
        clients=given.clients,
        requests=len(asked),
        seconds=round(seconds, 1),
        methods=sorted({json.dumps(one.body["speculative"]) for one in asked}),
        most_at_once=most_at_once(asked),
        longest_answer_seconds=round(max(one.ended - one.began for one in asked), 1),
        pages_left=after.pages,
        counts=counts,
        wrong=wrong,
    )
    tell(result, given.out)
    return 1 if wrong or after.pages else 0


if __name__ == "__main__":
    sys.exit(main())
