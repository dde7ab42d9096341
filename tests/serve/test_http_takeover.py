"""A worker is killed in the middle of what a client sees: calls, schemas, several outputs."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from http_server import Running, running, until

from paradecode.serve import replica as replicas
from paradecode.serve.pool import Served
from paradecode.serve.settings import ServerSettings
from paradecode.serve.worker.settings import WorkerSettings

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
    """Of each choice its texts, its calls' names and arguments, its scores and its end. When so
    many characters have come, the worker that runs it is killed."""
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


@pytest.mark.parametrize("kind", ASKED)
def test_what_a_client_sees_is_the_same(pair: Running, kind: str) -> None:
    plain = streamed(pair, ASKED[kind], 1 << 20)
    assert all(own[3] for own in plain)
    length = sum(len(own[0] + own[1]) for own in plain)
    assert length > 20
    for part in (0.1, 0.6):
        until(lambda: all(r.open for group in pair.pool._replicas.values() for r in group))
        assert streamed(pair, ASKED[kind], int(part * length)) == plain
