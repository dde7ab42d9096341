"""Sends hostile requests by the thousand: the server must answer each, stay up and leak nothing.

    python -m tools.serving.fuzz --requests 20000

The program starts a server. The exit status is 1 if an answer was wrong or something leaked.
"""

from __future__ import annotations

import json
import random
import socket
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from paradecode.serve.protocol import chat, completions, ollama, rank, responses
from tools.script import options, stamped, tell
from tools.serving.server import PATIENCE, Server, endure

WARM_UP = 0.25
"""Share of the requests after which memory is first measured, when caches and pools have grown."""

LARGE = 0.1
"""Share of the requests that have one very large field."""

FINE = {200, 400, 401, 403, 404, 405, 408, 411, 413, 415, 422, 429, 431, 503}
USER = [{"role": "user", "content": "Hi"}]
BASES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": USER, "max_tokens": 4},
    "/v1/completions": {"prompt": "abc", "max_tokens": 4},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 4},
    "/v1/rank": {"context": "abc", "candidates": ["a", [1, 2]]},
    "/rerank": {"query": "abc", "documents": ["a", {"text": "b"}]},
    "/api/chat": {"model": "tiny", "messages": USER, "options": {"num_predict": 4}},
    "/api/generate": {"model": "tiny", "prompt": "abc", "options": {"num_predict": 4}},
    "/completion": {"prompt": "abc", "n_predict": 4},
    "/tokenize": {"prompt": "abc"},
    "/detokenize": {"tokens": [1, 2, 3]},
}
ROUTES = tuple(BASES)
KINDS = (
    chat.ChatRequest, completions.CompletionRequest, completions.TokenizeRequest,
    completions.DetokenizeRequest, responses.ResponsesRequest, rank.RankRequest, rank.RerankRequest,
    completions.NativeCompletionRequest, ollama.OllamaChat, ollama.OllamaGenerate,
)  # fmt: skip
FIELDS = (*sorted({name for kind in KINDS for name in kind.model_fields}), "chat_template", "x")
TEXTS = (
    "", "a", "\0", "\u202e", "é" * 50, "𝄞\U0010ffff", "<|im_end|>", "{{7*7}}", "../../etc/passwd",
    "http://127.0.0.1:1/", "none", "auto", "prompt-lookup", "suffix(max_ngram=99999)", "a" * 5000,
    "(a+)+$", "[", "(((((", "a{1,99999}", "start: start", 'start: "a"+', "required", "json_object",
    "'; DROP TABLE", "\r\nX: y", "%s%n", "NaN", "1e999", "prompt-lookup+copyspec+suffix",
)  # fmt: skip
NUMBERS = (
    0, -1, 1, 2, 3, 0.5, -0.0, 1e-320, 1e308, 127, 128, 129, 2**31 - 1, 2**31, 2**63, -(2**63), 96,
)  # fmt: skip
SEARCHES = (
    "best-of(n=3)", "majority(n=2)", "ffs(n=3)", "a-star(k=2,step_tokens=3,budget=99)",
    "a-star(k=64,step_tokens=4096,budget=1048576,nodes=65536)", "beam(width=3)", "beam(width=32)",
    "diverse-beam", "superposed", "atts", "best-of(n=64)", "best-of(n=1e99)", "best-of(n=best-of)",
    "beam(length_penalty=nan)", "best-of(" * 40, "best-of(n=2)+ffs",
    "ffs(n=2,path='/etc/passwd')",
)  # fmt: skip
SCORERS = (
    "likelihood", "likelihood(norm=sum)", "answer", "process-reward(path='/etc/passwd')",
    "reward-model(path='.')", "likelihood(norm=likelihood)", "agreement",
)  # fmt: skip
RAW = (
    b"", b"{", b"[]", b"null", b'{"a":1,"a":2}', b'{"prompt": "\\ud800"}', b"\xff", b"[" * 9000,
    b'{"temperature": NaN, "prompt": "a"}', b'{"prompt":' + b"[" * 70 + b"]" * 70 + b"}",
    b'{"seed": ' + b"9" * 400 + b', "prompt": "a"}', b"\x00" * 100, b'"' + b"\\" * 999,
)  # fmt: skip


def value(chance: random.Random, depth: int = 0) -> Any:
    """Return a random value of any type that JSON has."""
    kind = chance.randrange(9 if depth < 5 else 5)
    if kind == 0:
        return chance.choice((None, True, False))
    if kind in (1, 2):
        return chance.choice(NUMBERS)
    if kind in (3, 4):
        return chance.choice(TEXTS)
    if kind in (5, 6):
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    names = chance.sample((*FIELDS, "type", "method", "name", "role", "content", "$ref"), 3)
    return {name: value(chance, depth + 1) for name in names[: chance.randrange(4)]}


def likely(chance: random.Random, field: str) -> Any:
    """Return a value of the type that ``field`` needs, which passes the server's first checks."""
    schema = chance.choice(
        ({"type": "object"}, {"type": "string", "pattern": chance.choice(TEXTS)}, {"$ref": "#"},
         {"enum": [value(chance)]}, {"type": "integer", "minimum": chance.choice(NUMBERS)},
         {"type": "array", "items": {"$ref": "#"}, "minItems": 10**9}, value(chance)),
    )  # fmt: skip
    shapes: dict[str, Callable[[], Any]] = {
        "messages": lambda: [{"role": chance.choice(("user", "assistant", "tool", "system")),
                              "content": chance.choice(TEXTS)} for _ in range(2)],
        "tools": lambda: [{"type": "function", "function": {"name": "f", "parameters": schema}}],
        "response_format": lambda: {"type": "json_schema", "json_schema": {"schema": schema}},
        "guided_json": lambda: schema,
        "structured_outputs": lambda: {chance.choice(("json", "regex", "grammar")): schema},
        "prediction": lambda: {"type": "content", "content": chance.choice(TEXTS)},
        "speculative": lambda: {"method": chance.choice(TEXTS), "num_speculative_tokens":
                                chance.choice(NUMBERS)},
        "diffusion": lambda: {"steps": chance.choice(NUMBERS), "block_length": 3},
        "logit_bias": lambda: {str(chance.choice(NUMBERS)): chance.choice(NUMBERS)},
        "stop": lambda: [chance.choice(TEXTS)],
        "model": lambda: chance.choice(("tiny", "canvas")),
        "stream": lambda: True,
        "n": lambda: chance.randrange(1, 9),
        "search": lambda: chance.choice(SEARCHES),
        "scorer": lambda: chance.choice(SCORERS),
        "best_of": lambda: chance.randrange(-1, 66),
        "use_beam_search": lambda: True,
        "candidates": lambda: [chance.choice((*TEXTS, [1, 2], [])) for _ in range(3)],
        "documents": lambda: [chance.choice((*TEXTS, {"text": "a"})) for _ in range(3)],
    }  # fmt: skip
    return shapes.get(field, lambda: value(chance))()


def large(chance: random.Random, field: str) -> Any:
    """Return a value of the type that ``field`` needs, up to 30,000 times as large as usual."""
    size = int(10 ** chance.uniform(0, 4.5))
    text = chance.choice(("a", "ab ", "\n", "é", "1", "{", "<|im_end|>"))
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(min(size, 60)):
        deep = {"type": "array", "items": deep} if size % 2 else {"properties": {"a": deep}}
    wide = {"properties": {f"p{i}": {"enum": ["a", i]} for i in range(size // 10)}}
    schema = chance.choice((deep, wide, {"enum": [f"{text}{i}" for i in range(size)]}))
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": text * size}}
    messages = chance.choice((
        USER * size, [{"role": "user", "content": text * size}],
        [{"role": "user", "content": [{"type": "text", "text": text}] * size}],
        [*USER, {"role": "assistant", "tool_calls": [call] * (size % 200)}, *USER],
    ))  # fmt: skip
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    shapes: dict[str, Any] = {
        "messages": messages, "input": messages, "prompt": chance.choice(
            (text * size, [text] * size, [1] * size, [[1] * (size % 300)] * (size % 70))),
        "tokens": [1] * size, "stop": [text * (size % 1100)] * (size % 20), "n": size,
        "logit_bias": {str(i): 1 for i in range(size)}, "top_logprobs": 20, "logprobs": 20,
        "tools": [tool] * (size % 200), "guided_json": schema, "guided_choice": [text] * size,
        "guided_regex": f"({text[:1]}{{{size % 2000}}}b?)" * (size % 50 + 1),
        "guided_grammar": "start: " + " | ".join(f'"{i}"' for i in range(size)),
        "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
        "prediction": {"type": "content", "content": text * size}, "max_tokens": size,
        "metadata": {str(i): "x" for i in range(size)}, "stop_token_ids": list(range(size)),
        "structured_outputs": {"choice": [f"{text}{i}" for i in range(size)]},
        "context": text * size, "query": text * size, "candidates": [text] * size,
        "documents": [text * (size % 900)] * (size % 1100), "search": text * size,
        "instructions": text * size, "speculative": {f"k{i}": 1 for i in range(size % 100)},
    }  # fmt: skip
    return shapes.get(field, text * size)


def body(chance: random.Random, route: str) -> dict[str, Any]:
    """Return a request that is correct except for a few fields."""
    made = {**BASES[route], "deadline": 5} if "tokenize" not in route else dict(BASES[route])
    if chance.random() < LARGE:
        field = chance.choice([*BASES[route], *FIELDS])
        return {**made, field: large(chance, field)}
    for _ in range(chance.choice((0, 1, 1, 1, 2, 3))):
        field = chance.choice(FIELDS)
        made[field] = likely(chance, field) if chance.random() < 0.6 else value(chance)
    if chance.random() < 0.05:
        made.pop(chance.choice(list(made)))
    return made


def attack(server: Server, client: httpx.Client, number: int, seed: int) -> str:
    """Send one request, and return the kind of its answer.

    It raises RuntimeError for a wrong answer.
    """
    chance = random.Random(f"{seed}.{number}")
    route = chance.choice(ROUTES)
    dice = chance.random()
    if dice < 0.04:
        return broken(server, chance, route)
    headers = {"content-type": "application/json"}
    if dice < 0.12:
        content, method = chance.choice(RAW), chance.choice(("POST", "POST", "GET", "PUT"))
        headers["content-type"] = chance.choice(("application/json", "text/plain", "a/b; c"))
        route = chance.choice((*ROUTES, "/", "/v1/models/%00", "/%2e%2e/", "/metrics"))
        response = client.request(method, route, content=content, headers=headers)
    else:
        content = json.dumps(body(chance, route)).encode()
        response = client.post(route, content=content, headers=headers)
    if (wrong := complaint(response)) is not None:
        raise RuntimeError(f"{wrong}: {content[:2000]!r} to {route}: {response.text[:500]}")
    return str(response.status_code)


def complaint(response: httpx.Response) -> str | None:
    """Return what is wrong with an answer to any request; None if nothing is."""
    text = response.text
    if response.status_code not in FINE:
        return f"status {response.status_code}"
    if "Traceback" in text:
        return "a traceback"
    if response.status_code != 200 and response.request.method != "HEAD":
        error = response.json()["error"]
        if response.url.path.startswith("/api/"):
            return None if isinstance(error, str) else "not the form of Ollama's error"
        known = error.keys() == {"message", "type", "param", "code"}
        return None if known and isinstance(error["message"], str) else "not the form of an error"
    ended = text.endswith("data: [DONE]\n\n") or '"error"' in text or '"stop":true' in text
    return "a stream without an end" if text.startswith("data: ") and not ended else None


def broken(server: Server, chance: random.Random, route: str) -> str:
    """Open a connection that sends random bytes or half a request, or that leaves early."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    content = json.dumps({**BASES[route], "stream": chance.random() < 0.5}).encode()
    head = f"POST {route} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    whole = head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        kind = chance.randrange(3)
        if kind == 0:
            connection.sendall(chance.randbytes(chance.randrange(1, 400)))
        elif kind == 1:
            connection.sendall(whole[: chance.randrange(1, len(whole))])
        else:
            connection.sendall(whole)
            connection.recv(chance.choice((1, 300)))
    return "cut"


def fuzz(server: Server, first: int, last: int, seed: int, threads: int = 8) -> Counter[str]:
    """Send the requests from ``first`` up to ``last``, and count the kinds of answers.

    Answers of the kind ``wrong`` are described on stderr.
    """
    with (
        httpx.Client(base_url=server.url, timeout=PATIENCE) as client,
        ThreadPoolExecutor(threads) as pool,
    ):

        def kind(number: int) -> str:
            try:
                return attack(server, client, number, seed)
            except Exception as error:  # The other requests are sent all the same.
                print(f"{number}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                return "wrong"

        return Counter(pool.map(kind, range(first, last)))


def main() -> int:
    parser = options(__doc__, requests=20000, seed=0)
    parser.add_argument("--models", nargs="*", default=["tiny=smollm2-135m-instruct"])
    chosen = parser.parse_args()
    kinds: Counter[str] = Counter()
    warm = int(chosen.requests * WARM_UP)

    def load(server: Server, warmed: bool) -> None:
        first, last = (warm, chosen.requests) if warmed else (0, warm)
        kinds.update(fuzz(server, first, last, chosen.seed))

    held = endure("fuzz", chosen.models, load)
    answers = dict(sorted(kinds.items()))
    tell(stamped(requests=chosen.requests, answers=answers, **held), chosen.out)
    return 1 if held["leaks"] or kinds["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
