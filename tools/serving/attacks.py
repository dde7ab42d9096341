"""Runs named attacks on a server, while a neighbour's stream must go on undisturbed.

    python -m tools.serving.attacks [--out bench/results/serve_attacks.json]

The program starts a server with two models and two keys. The attacker has one key. The neighbour
has the other key, and streams from the model that is attacked. The exit status is 1 if an answer
has another status than the table says, a worker dies, or a request or a page remains in the server.
It is also 1 if the stream pauses a second longer than without an attack, /health takes more than
250 ms, or the front process grows by 100 MB.
"""

from __future__ import annotations

import gzip
import json
import socket
import string
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from multiprocessing import get_context
from typing import Any

import httpx
import zstandard

from tools.script import options, stamped, tell
from tools.serving.flood import CLOSED, flood, status
from tools.serving.neighbour import Neighbour, Noticed
from tools.serving.server import LOGS, PATIENCE, Server, serving

PAUSE, HEALTH, GROWTH = 1.0, 0.25, 100 << 20
"""The most that the neighbour may notice.

The values are seconds beyond its pause without an attack, seconds of /health, and bytes by which
the front process grows.
"""

KEYS = ("key-of-the-attacker", "key-of-the-neighbour")
OPTIONS = (
    "--api-key", KEYS[0], "--api-key", KEYS[1], "--public", "health", "--public", "metrics",
    "--python-constraints",
)  # fmt: skip
MODELS = ("tiny=smollm2-135m-instruct", "canvas=paradecode/tiny-diffusion")
PLAIN_SECONDS, AFTERMATH = 3.0, 0.5
"""Seconds for which the neighbour is watched without an attack, and after each attack."""
Content = Callable[[], Any]
"""Makes the content of an attack: bytes, pieces of bytes, or a value for JSON."""


@dataclass(frozen=True)
class Attack:
    """One attack, and the statuses with which the server must answer it.

    Attributes:
        sends: what is sent, in words.
        expected: statuses that an answer may have.
        content: makes the body; without a ``path`` it makes all bytes that are sent, in pieces.
        at_once: number of senders at the same time.
        leaves: whether the senders leave without reading the answer.
        floods: seconds for which one thread holds all connections, which send one piece each.
        stays: whether the connections of a flood stay open after their answer.
        canvas: whether the diffusion model is attacked.
    """

    name: str
    sends: str
    expected: tuple[int, ...]
    content: Content
    path: str = "/v1/completions"
    at_once: int = 4
    leaves: bool = False
    floods: float = 0.0
    stays: bool = False
    canvas: bool = False


def twice(keys: int) -> str:
    return "{" + ",".join(f'"{i}":0' for i in range(keys)) + f',"{keys - 1}":1}}'


USER = [{"role": "user", "content": "Hi"}]
LETTERS = string.ascii_letters + string.digits
CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
LONG = {"max_tokens": 200, "ignore_eos": True, "deadline": 3}
LONGEST = 46778
"""Id of the default model's longest token: a line feed and 80 spaces."""


def ask(**fields: Any) -> Content:
    return lambda: {"prompt": "a", "max_tokens": 4, **fields}


def talk(**fields: Any) -> Content:
    return lambda: {"messages": USER, "max_tokens": 4, **fields}


def called(arguments: str) -> list[dict[str, Any]]:
    """Return a conversation with an earlier tool call, which has these arguments."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [*USER, {"role": "assistant", "tool_calls": [call]}, *USER]


def tool(number: int, parameters: Any) -> dict[str, Any]:
    function = {"name": f"f{number}", "parameters": parameters}
    return {"type": "function", "function": function}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


def get(path: str = "/v1/models", more: str = "", key: str = "") -> Content:
    """Make one request without a body; ``more`` has further lines of its head."""
    shown = f"Authorization: Bearer {key}\r\n" if key else ""
    return lambda: [f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{shown}{more}\r\n".encode()]


def python(code: str, source: str = "y = 1") -> Content:
    return ask(structured_outputs={"python": {"files": {"a.py": source}, "code": code}})


def chain(length: int) -> dict[str, Any]:
    """Return a schema of ``length`` definitions, each of which refers to the next."""
    definitions: dict[str, Any] = {
        f"d{i}": {"type": "array", "items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(length)
    }
    return {"$defs": {**definitions, f"d{length}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def patterns(first: int) -> dict[str, Any]:
    """Return forty patterns that one text has to match.

    Their intersection takes minutes to compute.
    """
    every = [{"type": "string", "pattern": f"^(.*[ab]){{{first + i}}}$"} for i in range(40)]
    return {"allOf": every}


def raw(*lines: str, body: bytes = b"", pieces: int = 1) -> Content:
    """Make a request as bytes, with its body in ``pieces`` pieces."""
    head = "\r\n".join((*lines, "", "")).encode()
    size = max(1, len(body) // pieces)
    return lambda: [head, *(body[at : at + size] for at in range(0, len(body), size))]


POST = ("POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json")
KEYED = (*POST, f"Authorization: Bearer {KEYS[0]}")
CHUNKS = b"1\r\na\r\n" * 40_000
EXTENDED = b"1;" + b"a" * 6_000_000 + b"\r\n{\r\n0\r\n" + b"a: b\r\n" * 20_000 + b"\r\n"
BOMBS = [("gzip", gzip.compress(b" " * 4_000_000)),
         ("zstd", zstandard.ZstdCompressor().compress(b" " * 4_000_000))]  # fmt: skip
WRONG, FINE = (400,), (200, 400, 429)

ATTACKS = (
    # Floods of up to 2,000 connections without a key. If more connections come than the server
    # holds, it closes the longest waiting ones.
    Attack("tiny headers", "6,000 headers of 3 bytes", (431,), get(more="a:b\r\n" * 6000), "",
           100, floods=5),
    Attack("headers that fit", "97 headers of 3 bytes", (401,), get(more="a:b\r\n" * 97), "",
           1000, floods=5),
    Attack("long lists", "15,000 values between commas", (431,),
           get(more="Connection: " + "a," * 15_000 + "\r\n"), "", 100, floods=5),
    Attack("lists that fit", "1,000 values between commas", (401,),
           get(more="Connection: " + "a," * 1000 + "\r\n"), "", 1000, floods=5),
    Attack("long query", "15,000 parameters", (431,), get("/health?" + "a&" * 15_000), "", 100,
           floods=5),
    Attack("query that fits", "1,000 parameters", (200,), get("/health?" + "a&" * 1000), "", 1000,
           floods=5),
    Attack("escaped path", "10,000 escaped letters", (431,), get("/" + "%41" * 10_000), "", 100,
           floods=5),
    Attack("escaped path that fits", "1,000 escaped letters", (401,), get("/" + "%41" * 1000), "",
           1000, floods=5),
    Attack("folded lines", "a header that goes on in 90 further lines", WRONG,
           get(more="a: b\r\n" + " c\r\n" * 90), "", 500, floods=5),
    Attack("bare line feeds", "90 headers that end so", WRONG, get(more="a: b\n" * 90), "", 500,
           floods=5),
    Attack("absolute targets", "8 KB of host in the target and in Host", (401,),
           get("http://" + "a." * 4000 + "/v1/models", "X-Host: " + "b." * 8000 + "\r\n"), "", 1000,
           floods=5),
    Attack("wrong keys", "2,000 requests at once", (401, CLOSED), get(key="key-of-nobody"), "",
           2000, floods=8),
    Attack("storm on /health", "2,000 requests at once", (200, CLOSED), get("/health"), "", 2000,
           floods=8),
    Attack("storm on /metrics", "1,000 requests at once", (200,), get("/metrics"), "", 1000,
           floods=8),
    Attack("storm on the page", "1,000 requests at once", (200,), get("/"), "", 1000, floods=8),
    Attack("silent connections", "2,000 that say nothing", (CLOSED,), lambda: [b""], "", 2000,
           floods=4),
    Attack("half requests", "2,000 that send a part of a head", (CLOSED,),
           lambda: [b"GET /health HTTP/1.1\r\nHo"], "", 2000, floods=4),
    Attack("idle connections", "2,000 that stay after an answer", (200, CLOSED), get("/health"), "",
           2000, floods=4, stays=True),
    Attack("bodies that never come", "2,000 that announce one", (401, CLOSED),
           raw(*POST, "Content-Length: 4194304"), "", 2000, floods=4, stays=True),
    Attack("bodies of a key that never come", "2,000 that announce one", (CLOSED,),
           raw(*KEYED, "Content-Length: 4194304"), "", 2000, floods=4),
    # Requests that take long to read.
    Attack("duplicated key", "an object of 90,000 keys, the last one twice", WRONG,
           lambda: twice(90_000).encode(), at_once=6),
    Attack("duplicated key in a call", "a call whose arguments have 40,000 keys, one twice",
           WRONG, talk(messages=called(twice(40_000))), CHAT, 6),
    Attack("deep arguments", "a call whose arguments are 60,000 brackets", WRONG,
           talk(messages=called("[" * 60_000)), CHAT),
    Attack("open brackets", "4 MB of [", WRONG, lambda: b"[" * 4_000_000),
    Attack("open objects", '4 MB of {"a":', WRONG, lambda: b'{"a":' * 800_000),
    Attack("quotes", '4 MB of "', WRONG, lambda: b'"' * 4_000_000),
    Attack("backslashes", "a text of 4 MB of backslashes", WRONG,
           lambda: b'{"prompt":"' + b"\\" * 4_000_000),
    Attack("spaces", "4 MB of spaces in an object", WRONG, lambda: b"{" + b" " * 4_000_000),
    Attack("long number", "a seed of 3,000,000 digits", WRONG,
           lambda: b'{"seed":' + b"9" * 3_000_000 + b"}"),
    Attack("halves of pairs", "500,000 halves of surrogate pairs", WRONG,
           lambda: b'{"prompt":"' + b"\\ud800" * 500_000 + b'"}'),
    Attack("empty lists", "a million empty lists", WRONG,
           lambda: b'{"prompt":[' + b"[]," * 1_000_000 + b"[]]}"),
    Attack("empty objects", "a million empty objects", WRONG,
           lambda: b'{"guided_json":[' + b"{}," * 1_000_000 + b"{}]}"),
    Attack("numbers", "a prompt of a million token ids", WRONG, ask(prompt=[1] * 1_000_000)),
    # Requests with many errors or many parts.
    Attack("bad texts", "4,000 prompts that are lists of 240 texts", WRONG,
           ask(prompt=[[""] * 240] * 4000)),
    Attack("bad biases", "8,000 biases of no token", WRONG,
           ask(logit_bias={f"x{i}": 1 for i in range(8000)})),
    Attack("many biases", "300,000 biases", WRONG,
           ask(logit_bias={str(i): 1 for i in range(300_000)})),
    Attack("unknown fields", "8,000 fields that do not exist", WRONG,
           ask(**{f"x{i}": 1 for i in range(8000)})),
    Attack("metadata", "8,000 entries of metadata, which has no effect", FINE,
           ask(metadata={str(i): 1 for i in range(8000)})),
    Attack("bad stops", "a million stop texts that are numbers", WRONG, ask(stop=[1] * 1_000_000)),
    Attack("messages", "60,000 messages", WRONG, talk(messages=USER * 60_000), CHAT),
    Attack("messages that fit", "4,096 messages, for the template", WRONG,
           talk(messages=[{"role": "user", "content": ""}] * 4096), CHAT),
    Attack("parts", "a message of 60,000 parts", WRONG,
           talk(messages=[{"role": "user", "content": [{"type": "text", "text": "a"}] * 60_000}]),
           CHAT),
    Attack("items", "60,000 items of input", WRONG, lambda: {"input": USER * 60_000},
           "/v1/responses"),
    Attack("blocks", "60,000 messages in Anthropic's form", WRONG,
           talk(messages=USER * 60_000), "/v1/messages"),
    Attack("tools", "20,000 tools", WRONG, talk(tools=[tool(i, {}) for i in range(20_000)]), CHAT),
    Attack("texts to embed", "4,096 texts", WRONG, lambda: {"input": ["a"] * 4096},
           "/v1/embeddings"),
    # Requests that take long to tokenize.
    Attack("long prompt", "a prompt of 2 MB", WRONG, ask(prompt="x" * 2_000_000), at_once=8),
    Attack("long prediction", "a prediction of 1.8 MB", WRONG,
           talk(prediction={"type": "content", "content": "ab " * 600_000}), CHAT),
    Attack("long text to tokenize", "1.8 MB", WRONG, lambda: {"prompt": "a b" * 600_000},
           "/tokenize"),
    Attack("one long word", "a word of 200,000 letters", FINE, lambda: {"prompt": "ab" * 100_000},
           "/tokenize"),
    Attack("spaces and digits", "3,000 of them in turns", FINE,
           lambda: {"prompt": " 1" * 1500 + "\n" * 500}, "/tokenize", 8),
    Attack("ids to detokenize", "250,000 of them", (200,), lambda: {"tokens": [1] * 250_000},
           "/detokenize"),
    Attack("ids of long tokens", "260,000 of the longest token", (200, 400),
           lambda: {"tokens": [LONGEST] * 260_000}, "/detokenize"),
    Attack("tokens of a byte each", "300,000 characters that no token has", WRONG,
           lambda: {"prompt": "\U0001f9ff" * 300_000}, "/tokenize"),
    Attack("many texts to embed", "2,048, as many as are taken", FINE,
           lambda: {"input": ["a"] * 2048}, "/v1/embeddings"),
    # Requests that take long to compile.
    Attack("deep schema", "20 objects in one another", FINE, ask(guided_json=nested(20))),
    Attack("chain of references", "definitions that each refer to the next", FINE,
           ask(guided_json=chain(400))),
    Attack("schema of itself", "anyOf of itself, eight times", FINE,
           ask(guided_json={"anyOf": [{"type": "array", "items": {"$ref": "#"}}] * 8})),
    Attack("huge enum", "6,000 texts", FINE,
           ask(guided_json={"enum": [f"text {i}" for i in range(6000)]})),
    Attack("choices", "1,024 that begin alike", FINE,
           ask(guided_choice=[f"{'ab' * 20}{i}" for i in range(1024)])),
    Attack("repeats of repeats", "((a{1000}){1000}){1000}", FINE,
           ask(guided_regex="((a{1000}){1000}){1000}"), at_once=8),
    Attack("ambiguous grammar", "start: start start", FINE,
           ask(guided_grammar='start: start start | "a"')),
    Attack("slow grammars", "forty patterns at once, four such schemas", WRONG,
           lambda: [{"prompt": "a", "guided_json": patterns(first)} for first in range(4)]),
    Attack("slow canvas automaton", "an expression of 120 characters for a canvas", FINE,
           ask(model="canvas",
               guided_regex=f"{LETTERS[:60]}!|{'[a-zA-Z0-9]{1000}' * 3}[a-zA-Z0-9]{{800}}"),
           canvas=True),
    Attack("many items on a canvas", "an array of 10^9 items", WRONG,
           ask(model="canvas",
               guided_json={"type": "array", "items": {"type": "null"}, "minItems": 10**9}),
           canvas=True),
    Attack("choices on a canvas", "1,024 of 60 characters", FINE,
           ask(model="canvas", guided_choice=[f"{i:04}" + "ab" * 28 for i in range(1024)]),
           canvas=True),
    Attack("python: for for for", "8,000 times for before a dot", FINE,
           python("for " * 8000 + "in x.")),
    Attack("python: deep base", "a class whose base has 5,000 dots", FINE,
           python("import a\na.A().", "class A(" + "a." * 5000 + "b): pass")),
    Attack("python: brackets", "20,000 brackets in a file", FINE,
           python("import a\na.", "(" * 20_000)),
    Attack("python: code that never parses", "250 KB of lines, broken at the end", FINE,
           python("x = [1]\n" * 30_000 + "def f(:\n" * 20 + "x.")),
    # Requests that take long to answer.
    Attack("outputs with scores", "64 outputs with 21 log-probabilities a token", FINE,
           talk(n=64, logprobs=True, top_logprobs=20, **LONG | {"max_tokens": 64}), CHAT, 2),
    Attack("too many scores", "64 outputs of the longest, with scores", WRONG,
           talk(n=64, logprobs=True, top_logprobs=20, max_tokens=256), CHAT),
    Attack("scores of prompts", "64 prompts, each token with 21 log-probabilities",
           (200, 400, 408, 429),
           ask(prompt=["one two three " * 16] * 64, max_tokens=0, echo=True, logprobs=20,
               deadline=3), at_once=2),
    Attack("outputs", "64 outputs, five times", FINE, ask(n=64, **LONG), at_once=5),
    Attack("long prompts", "24 prompts as long as the context", FINE,
           ask(prompt=[7] * 250, max_tokens=1, n=4, deadline=3), at_once=24),
    Attack("salts", "32 tenants that all learn", FINE,
           lambda: [{"prompt": "a b c " * 9, "cache_salt": f"salt {i}", **LONG,
                     "speculative": "token-recycling"} for i in range(32)], at_once=32),
    Attack("priorities", "32 requests before all others", FINE, ask(priority=-100, **LONG),
           at_once=32),
    Attack("stop texts", "16 of 1,000 characters, eight outputs", FINE,
           ask(stop=["ab" * 400 + str(i) for i in range(16)], n=8, **LONG)),
    Attack("biases and penalties", "1,000 biases, all penalties, eight outputs", FINE,
           ask(logit_bias={str(i): 0.1 for i in range(500)}, frequency_penalty=1.0,
               repetition_penalty=1.1, presence_penalty=0.5, n=8, **LONG)),
    # Searches and rankings.
    Attack("wide searches", "64 branches, four times", FINE, ask(search="best-of(n=64)", **LONG)),
    Attack("widest tree", "a-star of 64 steps of a token, a million tokens, 65,536 nodes", FINE,
           ask(search="a-star(k=64,step_tokens=1,budget=1048576,nodes=65536)", **LONG)),
    Attack("shown branches", "64 branches, each told in the stream", FINE,
           ask(search="best-of(n=64)", show_branches=True, stream=True, **LONG)),
    Attack("widest beams", "32 groups of one beam, which must differ from all before", FINE,
           ask(search="diverse-beam(width=32,groups=32,diversity=cumulative)", **LONG)),
    Attack("beams of vLLM", "32 beams, twice at once", FINE,
           ask(use_beam_search=True, n=32, **LONG), at_once=2),
    Attack("best of too many", "n of 10^18, in a text and as a field", WRONG,
           lambda: [{"prompt": "a", "search": f"best-of(n={10**18})"},
                    {"prompt": "a", "best_of": 10**18}], at_once=2),
    Attack("searches in searches", "a spec of 500 brackets", WRONG,
           ask(search="best-of(n=" * 100 + "2" + ")" * 100)),
    Attack("a spec too long", "a search of 3 MB", WRONG, ask(search="best-of(" * 400_000)),
    Attack("scorers that read files", "four that name one", WRONG,
           lambda: [{"prompt": "a", "search": "best-of(n=2)", "scorer": scorer} for scorer in (
               "process-reward(path='/etc/passwd')", "reward-model(path='/')",
               "process-reward(path='/dev/zero')", "superposed(table='/etc/passwd')")]),
    Attack("searches that read files", "a table of n-grams by its path", WRONG,
           ask(search="superposed(table='/dev/zero')")),
    Attack("searches past their time", "64 branches with a deadline of a microsecond", FINE,
           ask(search="majority(n=64)", **LONG | {"deadline": 1e-6}), at_once=8),
    Attack("searches that are left", "20 of 16 branches whose readers leave at once", (CLOSED,),
           ask(search="best-of(n=16)", stream=True, **LONG), at_once=20, leaves=True),
    Attack("many candidates", "1,024 of 50 tokens", (200, 400, 408, 429),
           lambda: {"context": "a", "candidates": [[i, *[7] * 49] for i in range(1, 1025)],
                    "deadline": 3}, "/v1/rank"),
    Attack("too many candidates", "100,000", WRONG,
           lambda: {"context": "a", "candidates": ["a"] * 100_000}, "/v1/rank"),
    Attack("a long candidate", "one of 2 MB, and one of 100,000 tokens", WRONG,
           lambda: [{"context": "a", "candidates": ["ab " * 700_000]},
                    {"context": "a", "candidates": [[7] * 100_000]}], "/v1/rank", 2),
    Attack("long documents", "1,024 of 3,000 characters", FINE,
           lambda: {"query": "a", "documents": ["one two " * 375] * 1024}, "/rerank"),
    # What no client sends.
    Attack("chunks without a key", "40,000 chunks of one byte", (400, 401),
           raw(*POST, "Transfer-Encoding: chunked", body=CHUNKS, pieces=8), "", 8),
    Attack("chunks with a key", "40,000 chunks of one byte", WRONG,
           raw(*KEYED, "Transfer-Encoding: chunked", body=CHUNKS, pieces=8), "", 8),
    Attack("two lengths", "Content-Length and Transfer-Encoding", WRONG,
           raw(*KEYED, "Content-Length: 5", "Transfer-Encoding: chunked",
               body=b"0\r\n\r\nGET / HTTP/1.1\r\n\r\n"), "", 8),
    Attack("different lengths", "Content-Length twice", WRONG,
           raw(*KEYED, "Content-Length: 5", "Content-Length: 6", body=b"{}{}{}"), "", 8),
    Attack("a length that is no number", "Content-Length: +5", WRONG,
           raw(*KEYED, "Content-Length: +5", body=b"{}   "), "", 8),
    Attack("a body behind a 401", "4 MB", (401, CLOSED),
           raw(*POST, "Content-Length: 4000000", body=b"x" * 4_000_000, pieces=40), "", 8),
    Attack("a byte at a time", "1,000 bytes, 30 connections", (400, 408, CLOSED),
           raw(*KEYED, "Content-Length: 1000", body=b"x" * 1000, pieces=1000), "", 30),
    Attack("lengths without bodies", "16 times 4 MB announced, and nothing sent",
           (400, 408, CLOSED), raw(*KEYED, "Content-Length: 4194304"), "", 16),
    Attack("half a header", "30 KB without an end, 200 connections", (400, CLOSED),
           lambda: [("\r\n".join(POST) + "\r\nX-A: " + "y" * 30_000).encode()], "", 200, True),
    Attack("a large header", "64 KB", (400, 431, CLOSED),
           raw(*POST, "X-A: " + "y" * 65_536), "", 16),
    Attack("pipelined requests", "5,000 GETs in one connection", (200, CLOSED),
           lambda: [b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * 5000], ""),
    Attack("no HTTP", "the beginning of TLS", (400, CLOSED),
           lambda: [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500], "", 50),
    Attack("a long end of chunks", "an extension of 6 MB, then 20,000 headers", (400, 413, CLOSED),
           raw(*KEYED, "Transfer-Encoding: chunked", body=EXTENDED, pieces=40), "", 4),
    Attack("bombs", "4 MB of spaces as 4 KB of gzip, and as 400 bytes of zstd", (413,),
           lambda: [raw(*KEYED, f"Content-Encoding: {coding}", f"Content-Length: {len(body)}",
                        body=body)() for coding, body in BOMBS * 10], "", 20),
    Attack("streams that are left", "100 streams whose readers leave at once", (CLOSED,),
           ask(stream=True, **LONG), at_once=100, leaves=True),
)  # fmt: skip


def prepared(attack: Attack) -> list[Any]:
    """Return what each sender of an attack sends: a body, or pieces of bytes."""
    made = attack.content()
    if isinstance(made, list) and isinstance(made[0], dict):
        return [json.dumps(one).encode() for one in made]
    if isinstance(made, list) and isinstance(made[0], list):
        return made
    return [json.dumps(made).encode() if isinstance(made, dict) else made] * attack.at_once


NAMED = {attack.name: attack for attack in ATTACKS}


@lru_cache(1)
def _each(name: str) -> list[Any]:
    return prepared(NAMED[name])


def make_ready(name: str) -> None:
    """Prepare the content of an attack in this process."""
    _each(name)


def strike_by_name(server: Server, name: str) -> tuple[Counter[int], float]:
    """Carry out an attack from this process, which does not measure the neighbour.

    In the measuring process the neighbour would wait for Python's lock.
    """
    return strike(server, NAMED[name], _each(name))


def strike(server: Server, attack: Attack, each: list[Any]) -> tuple[Counter[int], float]:
    """Carry out an attack; returns the counts of the answers' statuses, and its seconds."""
    # All senders share a client, because each new one would take 20 ms to load certificates.
    if attack.floods:
        began, where = time.perf_counter(), httpx.URL(server.url)
        sent = [one[0] for one in each]
        statuses = flood(where.host, where.port or 80, sent, attack.floods, attack.stays)
        return statuses, time.perf_counter() - began
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    with (
        httpx.Client(base_url=server.url, timeout=PATIENCE, limits=limits) as client,
        ThreadPoolExecutor(attack.at_once) as pool,
    ):
        began = time.perf_counter()
        statuses = Counter(pool.map(lambda one: _answer(client, attack, one), each))
        return statuses, time.perf_counter() - began


def _answer(client: httpx.Client, attack: Attack, content: Any) -> int:
    if isinstance(content, bytes) and not attack.leaves:
        headers = {"content-type": "application/json", "authorization": f"Bearer {KEYS[0]}"}
        return client.post(attack.path, content=content, headers=headers).status_code
    host, port = client.base_url.host, client.base_url.port or 80
    if isinstance(content, bytes):
        content = raw(*KEYED, f"Content-Length: {len(content)}", body=content)()
    answer = b""
    with suppress(OSError), socket.create_connection((host, port), timeout=15) as connection:
        try:
            for piece in content:
                connection.sendall(piece)
                time.sleep(0 if len(content) < 1000 else 0.001)
        except OSError:  # The server has closed the connection; its answer may still be read.
            pass
        while not attack.leaves and (piece := connection.recv(65536)):
            answer += piece
            if b"\r\n\r\n" in answer:
                break
    return status(answer)


def complaints(attack: Attack, statuses: Counter[int], seen: Noticed, plain: float) -> list[str]:
    """Return which bounds were exceeded during an attack."""
    bounds = {
        f"the stream paused for {seen.pause:.2f} s": seen.pause > plain + PAUSE,
        f"/health took {seen.health:.2f} s": seen.health > HEALTH,
        f"it was answered with {dict(statuses)}": not set(statuses) <= set(attack.expected),
        f"the neighbour: {seen.broken}": bool(seen.broken),
        "the neighbour had no stream": seen.events == 0,
    }
    return [f"{attack.name}: {said}" for said, wrong in bounds.items() if wrong]


def run(server: Server, attacks: Sequence[Attack] = ATTACKS) -> dict[str, Any]:
    """Carry out the attacks; returns the answers, what the neighbour noticed, and what is wrong."""
    neighbours = {
        canvas: Neighbour(server, model, KEYS[1])
        for canvas, model in ((False, "tiny"), (True, "canvas"))
    }
    plain = {}
    for canvas, neighbour in neighbours.items():
        # The first streams of a server are slower, so the second measurement counts.
        for seconds in (1.0, PLAIN_SECONDS):
            with neighbour.watching() as noticed:
                time.sleep(seconds)
        plain[canvas] = noticed
    before, rows, wrong = server.settled(), [], []
    attacker = ProcessPoolExecutor(1, get_context("spawn"))
    for attack in attacks:
        attacker.submit(make_ready, attack.name).result()
        with neighbours[attack.canvas].watching() as noticed:
            statuses, seconds = attacker.submit(strike_by_name, server, attack.name).result()
            time.sleep(AFTERMATH)
        grown = noticed.front - before.front
        wrong += complaints(attack, statuses, noticed, plain[attack.canvas].pause)
        wrong += [f"{attack.name}: the front grew by {grown >> 20} MB"] if grown > GROWTH else []
        rows.append({
            "name": attack.name, "sends": attack.sends, "at_once": attack.at_once,
            "statuses": {str(status): count for status, count in sorted(statuses.items())},
            "seconds": round(seconds, 2), "pause_ms": round(1e3 * noticed.pause),
            "health_ms": round(1e3 * noticed.health), "front_mb": round(grown / 2**20, 1),
        })  # fmt: skip
    attacker.shutdown()
    after = server.settled()
    wrong += [f"{after.restarts} workers died"] if after.restarts else []
    return {
        "plain": {"tiny": asdict(plain[False]), "canvas": asdict(plain[True])},
        "before": vars(before), "after": vars(after), "attacks": rows, "wrong": wrong,
    }  # fmt: skip


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--only", nargs="*", help="names of attacks")
    given = parser.parse_args()
    chosen = [one for one in ATTACKS if not given.only or one.name in given.only]
    with serving(given.models, LOGS / "paradecode-serve-attacks.log", OPTIONS) as server:
        found = run(server, chosen)
    bounds = {"pause_seconds": PAUSE, "health_seconds": HEALTH, "front_bytes": GROWTH}
    tell(stamped(models=given.models, bounds=bounds, **found), given.out)
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
