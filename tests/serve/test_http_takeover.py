"""Clients see the right answer although its worker is killed: calls, schemas, several outputs."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from http_server import Running, running

from paradecode.serve import replica as replicas
from paradecode.serve.pool import Served
from paradecode.serve.settings import ServerSettings
from paradecode.serve.worker.settings import WorkerSettings
from patience import until

pytest.importorskip("llguidance")

SCHEMA = {
    "type": "object", "required": ["name", "colour", "legs"],
    "properties": {
        "name": {"type": "string", "minLength": 20, "maxLength": 40},
        "colour": {"enum": ["red", "green", "blue"]},
        "legs": {"type": "array", "items": {"type": "integer"}, "minItems": 8, "maxItems": 12},
    },
}  # fmt: skip
USER = [{"role": "user", "content": "Describe an animal."}]
CHAT: dict[str, Any] = {"messages": USER, "max_tokens": 160, "temperature": 0.9, "seed": 4}
FORMAT = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA}}
TOOL = {"type": "function", "function": {"name": "describe", "parameters": SCHEMA}}
ASKED: dict[str, dict[str, Any]] = {
    "call": {**CHAT, "tools": [TOOL], "tool_choice": "required"},
    "schema": {**CHAT, "response_format": FORMAT, "logprobs": True, "top_logprobs": 2},
    "several": {**CHAT, "n": 3, "stop": ["zq"], "frequency_penalty": 0.5},
    "unseeded": {**CHAT, "temperature": 0},
    "canvas": {**CHAT, "model": "canvas", "max_tokens": 96, "ignore_eos": True},
    "canvas schema": {**CHAT, "model": "canvas", "response_format": FORMAT},
}
del ASKED["unseeded"]["seed"]


@pytest.fixture(scope="module")
def pair() -> Iterator[Running]:
    pauses = pytest.MonkeyPatch()
    pauses.setattr(replicas, "FIRST_PAUSE", 0.05)
    limits = {"kv_tokens": 8192}
    models = (
        Served("text", WorkerSettings(threads=1, limits=limits), 2),
        Served("canvas", WorkerSettings(model="tiny-diffusion", threads=1, limits=limits), 2),
    )
    with running(ServerSettings(models=models, port=0, log_requests=False)) as server:
        yield server
    pauses.undo()


def streamed(server: Running, body: dict[str, Any], kill_at: int) -> list[list[Any]]:
    """Return text, calls, scores and end of each choice of a stream.

    After ``kill_at`` characters, the worker that runs the request is killed.
    """
    found: dict[int, list[Any]] = {}
    killed = False
    canvas = body.get("model") == "canvas"
    path = "/v1/completions" if canvas else "/v1/chat/completions"
    if canvas:
        body = {**body, "prompt": "reverse: Ben Sam Art Ben Sam"}
        del body["messages"]
    with server.client.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        for line in filter(None, response.iter_lines()):
            if not line.startswith("data: {"):
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            for choice in event["choices"]:
                own = found.setdefault(choice["index"], ["", "", [], None])
                said = choice.get("delta", choice)
                own[0] += said.get("content") or said.get("text") or ""
                for call in said.get("tool_calls") or ():
                    own[1] += call["function"].get("name", "") + call["function"]["arguments"]
                for entry in (choice.get("logprobs") or {}).get("content") or ():
                    top = [one["token"] for one in entry["top_logprobs"]]
                    own[2].append((entry["token"], round(entry["logprob"], 3), top))
                own[3] = choice["finish_reason"] or own[3]
            if not killed and sum(len(own[0] + own[1]) for own in found.values()) >= kill_at:
                killed = True
                name = body.get("model", "text")
                busy = [r for r in server.pool._replicas[name] if r.calls and r.pid]
                for one in busy:
                    os.kill(one.pid, signal.SIGKILL)
    assert line == "data: [DONE]"
    assert killed or kill_at > 1000
    return [found[index] for index in sorted(found)]


def chained(tokens: list[int]) -> list[str]:
    """Return the hashes of whole blocks, as the docs define them, without a key and a salt."""
    found, key = [], hashlib.blake2b(b"0:target", digest_size=16).digest()
    for at in range(0, len(tokens) - 15, 16):
        block = struct.pack("<16i", *tokens[at : at + 16])
        key = hashlib.blake2b(key + block, digest_size=16).digest()
        found.append(key.hex())
    return found


def test_a_router_outside_can_follow_the_prefix_caches(pair: Running) -> None:
    """A router learns which worker has cached a prompt, and what changed.

    It also learns that a restarted worker has cached nothing.
    """
    prompt = "One two three four five six seven eight nine ten. " * 12
    tokens = pair.post("/tokenize", {"prompt": prompt}).json()["tokens"]
    until(lambda: all(r.open for r in pair.pool._replicas["text"]))
    before = pair.client.get("/v1/blocks").json()
    assert before["block_size"] == 16
    assert [one["whole"] for one in before["workers"]] == [True, True]
    assert pair.complete(prompt=prompt, max_tokens=1).status_code == 200
    after = pair.client.get("/v1/blocks", params={"since": before["since"]}).json()
    assert not any(one["whole"] or one["removed"] for one in after["workers"])
    stored = [set(one["stored"]) for one in after["workers"]]
    wanted = set(chained(tokens))
    assert len(wanted) >= 6
    assert sorted(wanted <= found for found in stored) == [False, True]
    (victim,) = (r for r, found in zip(pair.pool._replicas["text"], stored) if wanted <= found)
    restarts = victim.restarts
    os.kill(victim.pid, signal.SIGKILL)
    until(lambda: victim.restarts > restarts and victim.open)
    last = pair.client.get("/v1/blocks", params={"since": after["since"]}).json()
    assert sorted(one["whole"] for one in last["workers"]) == [False, True]
    assert not any(wanted & set(one["stored"]) for one in last["workers"])
    assert pair.client.get("/v1/blocks", params={"since": "x"}).status_code == 400
    wrong = pair.client.get("/v1/blocks", params={"sinse": last["since"]})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "sinse")
    assert pair.client.get("/v1/blocks", params={"model": "none"}).status_code == 404


@pytest.mark.first(1)
@pytest.mark.parametrize("kind", ASKED)
def test_what_a_client_sees_is_the_same(pair: Running, kind: str) -> None:
    plain = streamed(pair, ASKED[kind], 1 << 20)
    assert all(own[3] for own in plain)
    length = sum(len(own[0] + own[1]) for own in plain)
    assert length > 20
    for part in (0.1, 0.6):
        until(lambda: all(r.open for group in pair.pool._replicas.values() for r in group))
        assert streamed(pair, ASKED[kind], int(part * length)) == plain
