"""Ollama's routes answer in Ollama's form, and llama.cpp's route for texts in llama.cpp's."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx
import pytest
from http_server import USER, FakePool, Running, events, ready, running, settings

from paradecode.serve.wire import Failure

IGNORED = "x-paradecode-ignored"
SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
FUNCTION = {"name": "Read", "parameters": SCHEMA}
CALL = '<tool_call>{"name": "Read", "arguments": {"a": "b"}}</tool_call>'
OPTIONS = {
    "num_predict": 7, "temperature": 0.5, "top_p": 0, "top_k": 3, "seed": 1, "stop": ["x"],
    "repeat_penalty": 1.5, "num_ctx": 4096, "mirostat": 0,
}  # fmt: skip


def lines(answer: httpx.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def chat(server: Running, **body: Any) -> httpx.Response:
    return server.post("/api/chat", {"model": "caller:latest", "messages": USER, **body})


def generate(server: Running, **body: Any) -> httpx.Response:
    return server.post("/api/generate", {"model": "caller", "prompt": "Hi", **body})


def test_what_is_served(server: Running) -> None:
    told = server.client.get("/api/version").json()["version"]
    assert [int(part) for part in told.split(".")] >= [0, 6, 4]  # Below it, some refuse to go on.
    for path in ("tags", "ps"):
        found = server.client.get(f"/api/{path}").json()["models"]
        assert [each["name"] for each in found] == ["tiny", "canvas", "caller"]
        assert all(each["details"]["family"] for each in found)
    pool = server.pool
    pool.ready["caller"] = replace(ready("caller", tools=True), thoughts=True, fim=["P", "S", "M"])
    shown = server.post("/api/show", {"model": "caller:latest"}).json()
    assert shown["capabilities"] == ["completion", "tools", "insert", "thinking"]
    family = shown["model_info"]["general.architecture"]
    assert shown["model_info"][f"{family}.context_length"] == 512


def test_a_chat_streams_unless_it_is_told_not_to(server: Running) -> None:
    parts = lines(chat(server))
    assert "".join(part["message"]["content"] for part in parts) == "Hello"
    assert [part["done"] for part in parts] == [False, False, True]
    end = parts[-1]
    assert (end["done_reason"], end["prompt_eval_count"], end["eval_count"]) == ("stop", 7, 4)
    assert end["total_duration"] == 600_000_000
    whole = chat(server, stream=False).json()
    assert whole["message"] == {"role": "assistant", "content": "Hello"}
    assert whole["done"] is True
    assert whole.keys() == end.keys()


def test_options(server: Running) -> None:
    answer = chat(server, options=OPTIONS, keep_alive="5m", logprobs=False)
    assert answer.headers[IGNORED] == "keep_alive, logprobs, options.num_ctx, options.mirostat"
    found = server.pool.seen[0].sampling
    assert {name: found[name] for name in ("max_tokens", "temperature", "top_k", "seed")} == {
        "max_tokens": 7, "temperature": 0.5, "top_k": 3, "seed": 1,
    }  # fmt: skip
    assert 0 < found["top_p"] < 1e-6
    assert (found["repetition_penalty"], found["stop"]) == (1.5, ["x"])
    assert chat(server, options={"num_predict": -1}).status_code == 200
    assert "max_tokens" not in server.pool.seen[1].sampling


def test_formats_and_thoughts(server: Running) -> None:
    chat(server, format="json")
    chat(server, format=SCHEMA, think=True)
    chat(server, format="", think="none")
    json_object, schema, plain = server.pool.seen
    assert json_object.constraint.type == "json_object"
    assert schema.constraint.value["properties"] == SCHEMA["properties"]
    assert schema.prompt.variables == {"enable_thinking": True}
    assert (plain.constraint, plain.prompt.variables) == (None, {"enable_thinking": False})
    server.pool.texts = ["<think>Hm", "</think>So."]
    message = chat(server, stream=False).json()["message"]
    assert (message["thinking"], message["content"]) == ("Hm", "So.")
    thought, said, _ = (part["message"] for part in lines(chat(server)))
    assert (thought["thinking"], said["content"]) == ("Hm", "So.")


def test_tools(server: Running) -> None:
    server.pool.texts = [CALL[:30], CALL[30:]]
    asked = {"tools": [{"type": "function", "function": FUNCTION}]}
    called = {"function": {"name": "Read", "arguments": {"a": "b"}}}
    whole = chat(server, stream=False, **asked).json()
    assert whole["message"]["tool_calls"] == [called]
    first, end = lines(chat(server, **asked))
    assert (first["message"]["tool_calls"], first["done"]) == ([called], False)
    assert end["done_reason"] == "stop"
    said = {"role": "tool", "tool_name": "Read", "content": "b"}
    chat(server, messages=[*USER, whole["message"], said])
    _, call, result = server.pool.seen[-1].prompt.messages
    assert call["tool_calls"][0]["function"]["arguments"] == {"a": "b"}
    assert (result["role"], result["name"]) == ("tool", "Read")


def test_texts(server: Running) -> None:
    server.pool.ready["caller"] = replace(ready("caller"), fim=["P", "S", "M"])
    parts = lines(generate(server, system="Be brief."))
    assert "".join(part["response"] for part in parts) == "Hello"
    assert generate(server, raw=True, stream=False).json()["response"] == "Hello"
    generate(server, suffix="end", options={"num_predict": 3})
    templated, raw, middle = server.pool.seen
    assert [message["role"] for message in templated.prompt.messages] == ["system", "user"]
    assert (raw.prompt.text, "max_tokens" in raw.sampling) == ("Hi", False)
    assert (middle.prompt.text, middle.sampling["max_tokens"]) == ("PHiSendM", 3)


def test_an_empty_request_loads_the_model(server: Running) -> None:
    for answer in (chat(server, messages=[]), generate(server, prompt="", keep_alive=0)):
        assert answer.json()["done_reason"] == "load"
    assert server.pool.seen == []


DEEP: Any = []
for _ in range(60):
    DEEP = [DEEP]
PNG = [{"role": "user", "content": "Hi", "images": ["AA=="]}]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [("chat", {"messages": PNG}, "read and write text"), ("chat", {"model": "x"}, "no such model"),
     ("generate", {"images": ["AA=="]}, "read and write text"),
     ("generate", {"template": "{{ .Prompt }}"}, "template"),
     ("generate", {"context": [1, 2]}, "conversation"),
     ("chat", {"options": {"temperature": 3}}, "temperature"),
     ("chat", {"options": {"temprature": 1}}, "options.temprature"),
     ("chat", {"options": {"stop": [[]]}}, "stop"), ("chat", {"options": []}, "options"),
     ("chat", {"format": 5}, "format"), ("chat", {"think": 5}, "think"),
     ("chat", {"messages": DEEP}, "messages"), ("chat", {"tools": [5]}, "tools[0]"),
     ("chat", {"messages": [{"role": "user"}] * 5000}, "messages"),
     ("chat", {"messages": [{"role": "x"}]}, "role"), ("chat", {"stream": "no"}, "stream"),
     ("generate", {"prompt": 5}, "prompt"), ("show", {"model": [1]}, "model"),
     ("embed", {"input": "a"}, "/v1/embeddings"), ("pull", {}, "no such route")],
)  # fmt: skip
def test_refusals_have_ollamas_form(
    server: Running, path: str, body: dict[str, Any], said: str
) -> None:
    own = {"chat": {"messages": USER}, "generate": {"prompt": "Hi"}}.get(path, {})
    answer = server.post(f"/api/{path}", {"model": "caller", **own, **body})
    assert answer.status_code in (400, 404), answer.text
    assert answer.json().keys() == {"error"}
    assert said in answer.json()["error"]


def test_a_stream_that_fails_says_so_in_a_line(server: Running) -> None:
    server.pool.failure = Failure(id="", status=500, message="it broke")
    server.pool.fails_after = 2
    assert lines(chat(server))[-1] == {"error": "it broke"}


def test_a_key_is_asked_for_in_ollamas_form() -> None:
    with running(settings(keys=("a-long-key",)), FakePool()) as server:
        none = {"authorization": ""}
        answer = server.client.get("/api/tags", headers=none)
        assert (answer.status_code, type(answer.json()["error"])) == (401, str)


def test_llama_cpps_completion(server: Running) -> None:
    asked = {"prompt": "Hi", "n_predict": -1, "typical_p": 1, "json_schema": SCHEMA}
    answer = server.post("/completion", asked)
    assert (answer.json()["content"], answer.json()["stop"]) == ("Hello", True)
    assert answer.headers[IGNORED] == "typical_p"
    (request,) = server.pool.seen
    assert (request.prompt.text, request.constraint.type) == ("Hi", "json_schema")
    assert "max_tokens" not in request.sampling
    parts = events(server.post("/completion", {"prompt": [1, 2], "stream": True}))
    assert "".join(json.loads(data)["content"] for data in parts) == "Hello"
    for wrong in (
        {"grammar": "root ::= x"}, {"prompt": [[1]]}, {"lora": [{"id": 0}]}, {"n": 2},
    ):  # fmt: skip
        assert server.post("/completion", {**asked, **wrong}).status_code == 400


def test_other_paths_and_names_of_llama_cpp(server: Running) -> None:
    assert server.client.get("/models").json() == server.client.get("/v1/models").json()
    assert server.client.get("/v1/health").status_code == 200
    assert server.client.head("/").status_code == 200
    assert server.post("/chat/completions", {"messages": USER}).status_code == 200
    assert server.post("/tokenize", {"content": "ab"}).json()["tokens"] == [1, 2]
    assert server.post("/tokenize", {"content": "ab", "prompt": "a"}).status_code == 400
    assert server.post("/detokenize", {"tokens": [1]}).json()["content"] == "ab"
