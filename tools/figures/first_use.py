"""Measures the cost of a feature's first use: the first, the second and the median call.

    python -m tools.figures.first_use [NAME ...] [--calls 12] [--out bench/results/first_use.json]

Each feature is used in a new process that has just loaded a model, or over HTTP with a `paradecode
serve` that has just become ready. Three plain answers come before a feature's first use, so that
only its own cost is measured; the row `plain` has none before it. No two calls are equal: each has
another prompt, schema or expression. At the end, forwards of one row after each number of tokens
are measured, and those that take far longer than the others are named.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import httpx
from rich.progress import track

from paradecode import LLM
from paradecode.engine.cost import probe
from paradecode.models.catalogue import DEFAULT
from tools.script import Columns, err, options, said_by, save, show, stamped
from tools.serving.server import LOGS, serving

PLAIN, PLAIN_CALLS = "plain", 3
LONGEST, SLOW = 1100, 3
"""Number of tokens of the long text, and the multiple of the median that makes a row slow."""

SMALL, CANVAS = "paradecode/tiny-autoregressive", "paradecode/tiny-diffusion"
FEW: dict[str, Any] = {"max_tokens": 8}
DRAWN: dict[str, Any] = {"temperature": 0.8, "seed": 1}
NAMES = ["Ben", "Sam", "Art", "Tom", "Eve", "Kim", "Max", "Ida"]
COLUMNS: Columns = {
    "where": "{where}", "feature": "{feature}", "first, ms": "{first_ms:.1f}",
    "second": "{second_ms:.1f}", "median of later": "{median_ms:.1f}",
    "slowest of later": "{slowest_ms:.1f}",
}  # fmt: skip

Use = Callable[[LLM, int], object]
Ask = Callable[[httpx.Client, int], object]


def said(number: int) -> str:
    return f"Shelf {number} holds {number + 3} jars. Name what is in them."


def conversation(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": said(number)}]


def schema(number: int) -> dict[str, Any]:
    name = f"name{number}"
    return {
        "type": "object", "properties": {name: {"type": "string", "maxLength": 4}},
        "required": [name], "additionalProperties": False,
    }  # fmt: skip


def generate(**settings: Any) -> Use:
    return lambda llm, number: llm.complete(
        said(number), **{"decoder": "greedy", **FEW, **settings}
    )


def constrained(kind: str, value: Callable[[int], object]) -> Use:
    return lambda llm, number: llm.complete(
        said(number), **FEW, decoder="greedy", constraint={"type": kind, "value": value(number)}
    )


def long_prompt(llm: LLM, number: int) -> None:
    ids = [256 + (31 * number + 7 * place) % 40_000 for place in range(480)]
    llm.complete([ids], max_tokens=1, decoder="greedy")


OF_LLM: dict[str, Use] = {
    PLAIN: generate(),
    "chat": lambda llm, number: llm.chat(conversation(number), **FEW, decoder="greedy"),
    "stream": lambda llm, number: [*llm.stream(llm.encode(said(number)), **FEW, decoder="greedy")],
    "n=4": generate(n=4, **DRAWN),
    "logprobs": generate(logprobs=5),
    "top-k, top-p": generate(top_k=40, top_p=0.9, **DRAWN),
    "stop texts": generate(stop=["jar", "lid"]),
    "prompt of 480 tokens": long_prompt,
    "score": lambda llm, number: llm.score([said(number)]),
    "rank": lambda llm, number: llm.rank(said(number), [" Figs", " Tea and rice"]),
    "embed": lambda llm, number: llm.embed([said(number)]),
    "prediction": generate(decoder="predicted-output", prediction="Figs and tea."),
    "search best-of": generate(search="best-of(n=4)", **DRAWN),
    "search beam": generate(search="beam(width=4)"),
    "json_schema": constrained("json_schema", schema),
    "regex": constrained("regex", lambda number: f"[a-z]{{3,5}}{number}"),
    "lark": constrained("lark", lambda number: f'start: "figs" | "tea{number}"'),
    "choice": constrained("choice", lambda number: ["figs", f"tea{number}"]),
    "python": constrained(
        "python", lambda number: {"files": {"jar.py": f"lid{number} = 1"}, "code": "import jar\n"}
    ),
    **{
        f"method {name}": generate(decoder=name)
        for name in ("auto", "prompt-lookup", "suffix", "token-recycling", "lookahead", "jacobi",
                     "layer-skip", "swift", "copyspec")
    },
}  # fmt: skip


def canvas(**settings: Any) -> Use:
    def use(llm: LLM, number: int) -> object:
        names = [NAMES[(number >> 2 * place) % len(NAMES)] for place in range(3)]
        given = {name: each(number) if callable(each) else each for name, each in settings.items()}
        return llm.complete("copy: " + " ".join(names), max_tokens=16, **given)

    return use


OF_CANVAS: dict[str, Use] = {
    PLAIN: canvas(),
    "threshold, dual cache": canvas(decoder="threshold(cache=dual)"),
    "choice": canvas(
        constraint=lambda number: {"type": "choice", "value": ["Ben", f"Sam{number}"]}
    ),
}


def post(path: str, **fields: Any) -> Ask:
    """Make a request; fields that are functions are called with the number of the call."""

    def ask(client: httpx.Client, number: int) -> None:
        given = {name: each(number) if callable(each) else each for name, each in fields.items()}
        answer = client.post(path, json={"model": DEFAULT, **given})
        if answer.status_code != 200:
            raise RuntimeError(f"{path} answers {answer.status_code}: {answer.text}")

    return ask


def get(path: str) -> Ask:
    return lambda client, number: client.get(path).raise_for_status()


def chat(**fields: Any) -> Ask:
    return post("/v1/chat/completions", messages=conversation, **{**FEW, **fields})


OF_SERVER: dict[str, Ask] = {
    PLAIN: chat(),
    "stream": chat(stream=True),
    "tool call": chat(
        tool_choice="required", max_tokens=32,
        tools=lambda number: [
            {"type": "function", "function": {"name": "put", "parameters": schema(number)}}
        ],
    ),
    "json_schema": chat(
        response_format=lambda number: {
            "type": "json_schema", "json_schema": {"name": "jar", "schema": schema(number)}
        }
    ),
    "n=4": chat(n=4, **DRAWN),
    "logprobs": chat(logprobs=True, top_logprobs=5),
    "second model": chat(model=SMALL),
    "method greedy": chat(speculative={"method": "greedy"}),
    "method suffix": chat(speculative={"method": "suffix"}),
    "completions": post("/v1/completions", prompt=said, **FEW),
    "responses": post("/v1/responses", input=said, max_output_tokens=16),
    "messages": post("/v1/messages", messages=conversation, **FEW),
    "embeddings": post("/v1/embeddings", input=said),
    "tokenize": post("/tokenize", prompt=said),
    "metrics": get("/metrics"),
    "page": get("/"),
    "openapi.json": get("/openapi.json"),
}  # fmt: skip

FEATURES: dict[str, dict[str, Any]] = {"LLM": OF_LLM, "canvas": OF_CANVAS, "HTTP": OF_SERVER}


def times(features: dict[str, Any], name: str, subject: object, calls: int) -> list[float]:
    """Return the seconds of each call of a feature."""
    for number in range(0 if name == PLAIN else PLAIN_CALLS):
        features[PLAIN](subject, 1000 + number)
    found = []
    for number in range(calls):
        begun = time.perf_counter()
        features[name](subject, number)
        found.append(time.perf_counter() - begun)
    return found


def alone(where: str, name: str, calls: int) -> None:
    """Print the seconds of a feature's calls, measured in this process."""
    llm = LLM(CANVAS if where == "canvas" else DEFAULT)
    print(json.dumps(times(FEATURES[where], name, llm, calls)))


def forwards() -> None:
    """Print the seconds of one row after each number of tokens, measured in this process."""
    backend, found = LLM().backend, []
    for context in range(LONGEST):
        span = probe(backend.config, 1, context)
        begun = time.perf_counter()
        backend.forward([span])
        found.append(time.perf_counter() - begun)
    print(json.dumps(found))


def apart(call: str) -> list[float]:
    """Run a call of this module in a new process, and return the numbers that it prints."""
    return list(said_by(f"from tools.figures import first_use; first_use.{call}"))


def served(name: str, calls: int) -> list[float]:
    with (
        serving([DEFAULT, SMALL], LOGS / "paradecode-first-use.log") as server,
        httpx.Client(base_url=server.url, timeout=60) as client,
    ):
        return times(OF_SERVER, name, client, calls)


def figures(where: str, name: str, calls: int) -> dict[str, Any]:
    call = f"alone({where!r}, {name!r}, {calls})"
    first, second, *later = served(name, calls) if where == "HTTP" else apart(call)
    found = {"first": first, "second": second, "median": median(later), "slowest": max(later)}
    rounded = {f"{key}_ms": round(1e3 * seconds, 2) for key, seconds in found.items()}
    return {"where": where, "feature": name, **rounded}


def main() -> None:
    parser = options(__doc__, calls=12)
    parser.add_argument("names", nargs="*", help="features; none: all")
    given = parser.parse_args()
    wanted = [
        (where, name)
        for where, features in FEATURES.items()
        for name in features
        if not given.names or name in given.names
    ]
    rows = [
        figures(where, name, given.calls)
        for where, name in track(wanted, description="features", console=err)
    ]
    show(rows, COLUMNS)
    steps = [round(1e3 * seconds, 2) for seconds in apart("forwards()")]
    slow = {at: each for at, each in enumerate(steps) if each > SLOW * median(steps)}
    answer = {"tokens": LONGEST, "median_ms": round(median(steps), 2), "slow_ms": slow}
    print(answer)
    save(stamped(calls=given.calls, features=rows, long_text=answer), given.out)


if __name__ == "__main__":
    main()
