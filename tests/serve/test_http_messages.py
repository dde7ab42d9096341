"""Anthropic's API has the right form, over a fake pool."""

from __future__ import annotations

import json
from typing import Any

import pytest
from http_server import FakePool, Running, running, settings

from paradecode.serve.wire import Failure

TOOL = {"name": "weather", "description": "Now.", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string"}}}}  # fmt: skip
CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'


def ask(server: Running, **body: Any) -> Any:
    said = {"model": "tiny", "max_tokens": 8, "messages": [{"role": "user", "content": "Hi"}]}
    return server.post("/v1/messages", {**said, **body})


def streamed(server: Running, **body: Any) -> list[dict[str, Any]]:
    found = []
    for block in ask(server, stream=True, **body).text.strip().split("\n\n"):
        name, data = block.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_a_whole_answer(server: Running) -> None:
    answer = ask(server).json()
    assert answer["content"] == [{"type": "text", "text": "Hello"}]
    assert (answer["type"], answer["role"], answer["stop_reason"]) == (
        "message", "assistant", "end_turn",
    )  # fmt: skip
    assert answer["usage"] == {
        "input_tokens": 4, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 0,
        "output_tokens": 4,
    }  # fmt: skip


def test_a_stream(server: Running) -> None:
    found = streamed(server)
    assert [event["type"] for event in found] == [
        "message_start", "content_block_start", "content_block_delta", "content_block_delta",
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert found[0]["message"]["usage"] == {"input_tokens": 7, "output_tokens": 0}
    assert [e["delta"]["text"] for e in found if "text" in e.get("delta", {})] == ["Hel", "lo"]
    assert found[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


def test_a_stop_sequence_is_named(server: Running) -> None:
    server.pool.stopped = "\n\n"
    assert ask(server).json()["stop_reason"] == "stop_sequence"
    found = streamed(server)
    assert found[-2]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": "\n\n"}
    server.pool.texts = [CALL]
    assert ask(server, tools=[TOOL]).json()["stop_reason"] == "tool_use"


def test_tokens_are_counted_without_an_answer(server: Running) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "tools": [TOOL]}
    counted = server.post("/v1/messages/count_tokens", {**body, "system": "Be brief."})
    assert counted.json() == {"input_tokens": 2}
    assert server.pool.seen == []
    more = server.post("/v1/messages/count_tokens", {**body, "max_tokens": 5})
    assert (more.status_code, more.headers["x-paradecode-ignored"]) == (200, "max_tokens")


def test_every_field_reaches_the_worker(server: Running) -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": "sunny"}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Hi",
                                      "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": [
            {"type": "text", "text": "Wait."},
            {"type": "tool_use", "id": "1", "name": "weather", "input": {"city": "Rome"}}]},
        {"role": "user", "content": [result, {"type": "text", "text": "So?"}]},
    ]  # fmt: skip
    answer = ask(
        server, model="caller", messages=messages, system=[{"type": "text", "text": "Be brief."}],
        stop_sequences=["x"], temperature=0.5, top_k=3, top_p=0.9, tools=[TOOL],
        tool_choice={"type": "any"}, metadata={"user_id": "u"}, thinking={"type": "disabled"},
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    (request,) = server.pool.seen
    assert request.sampling == {
        "temperature": 0.5, "max_tokens": 8, "stop": ["x"], "top_k": 3, "top_p": 0.9,
    }  # fmt: skip
    roles = [(m["role"], m["content"]) for m in request.prompt.messages]
    assert roles == [("system", "Be brief."), ("user", "Hi"), ("assistant", "Wait."),
                     ("tool", "sunny"), ("user", "So?")]  # fmt: skip
    assert request.prompt.messages[2]["tool_calls"][0]["function"]["arguments"] == {"city": "Rome"}
    assert request.prompt.tools[0]["function"]["name"] == "weather"
    assert request.constraint.type == "json_schema"


def test_a_call(server: Running) -> None:
    server.pool.texts = [CALL[:20], CALL[20:]]
    answer = ask(server, tools=[TOOL]).json()
    (block,) = answer["content"]
    assert (block["name"], block["input"]) == ("weather", {"city": "Rome"})
    assert answer["stop_reason"] == "tool_use"
    found = streamed(server, tools=[TOOL])
    start = next(event for event in found if event["type"] == "content_block_start")
    assert start["content_block"]["name"] == "weather"
    parts = [e["delta"]["partial_json"] for e in found if "partial_json" in e.get("delta", {})]
    assert json.loads("".join(parts)) == {"city": "Rome"}
    assert found[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize("kind", ["auto", "any"])
@pytest.mark.parametrize("single", [False, True])
def test_parallel_calls(server: Running, kind: str, single: bool) -> None:
    server.pool.texts = [CALL, CALL]
    choice = {"type": kind, "disable_parallel_tool_use": single}
    answer = ask(server, tools=[TOOL], tool_choice=choice).json()
    assert [block["type"] for block in answer["content"]] == ["tool_use"] * (1 if single else 2)
    assert answer["stop_reason"] == "tool_use"


BEGUN = {"role": "assistant", "content": "The answer is"}
HI = {"role": "user", "content": "Hi"}


def test_an_answer_goes_on_behind_its_beginning(server: Running) -> None:
    turns = [HI, BEGUN]
    assert ask(server, messages=turns).json()["content"] == [{"type": "text", "text": "Hello"}]
    blocks = {"role": "assistant", "content": [{"type": "text", "text": "The answer is"}]}
    assert ask(server, messages=[HI, blocks], tools=[TOOL]).status_code == 200
    for request in server.pool.seen:
        assert request.prompt.messages[-1] == HI
        assert request.prompt.begun == "The answer is"
    assert ask(server, messages=[HI, BEGUN, HI]).status_code == 200
    last = server.pool.seen[-1].prompt
    assert (last.messages, last.begun) == ([HI, BEGUN, HI], None)


@pytest.mark.parametrize(
    ("turns", "said"),
    [([HI, {**BEGUN, "content": "It is "}], "white space"),
     ([HI, {**BEGUN, "content": [{"type": "text", "text": "So\n"}]}], "white space"),
     ([BEGUN], "behind another one"),
     ([HI, {"role": "assistant", "content": [
         {"type": "tool_use", "id": "1", "name": "weather", "input": {}}]}], "result follow")],
)  # fmt: skip
def test_beginnings_that_nothing_can_go_on_behind(
    server: Running, turns: list[dict[str, Any]], said: str
) -> None:
    for path, more in (("/v1/messages", {"max_tokens": 8}), ("/v1/messages/count_tokens", {})):
        answer = server.post(path, {"messages": turns, **more})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages")
        assert said in answer.json()["error"]["message"]
    assert server.pool.seen == []


def test_an_empty_answer_and_a_cut_one(server: Running) -> None:
    server.pool.texts, server.pool.reason = [""], "length"
    answer = ask(server).json()
    assert answer["content"] == [{"type": "text", "text": ""}]
    assert answer["stop_reason"] == "max_tokens"
    assert [event["type"] for event in streamed(server)][1:3] == [
        "content_block_start", "content_block_stop",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": None}, {"messages": []}, {"tools": [{**TOOL, "input_schema": 1}]},
        {"messages": [{"role": "sistem", "content": "x"}]},
        {"tool_choice": {"type": "tool", "name": "nothing"}, "tools": [TOOL]},
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
    ],
)  # fmt: skip
def test_errors_have_anthropics_form(server: Running, body: dict[str, Any]) -> None:
    answer = ask(server, **body)
    assert answer.status_code == 400
    assert answer.json()["type"] == "error"
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_failure_in_a_stream(server: Running) -> None:
    server.pool.failure = Failure(id="x", status=503, message="gone")
    server.pool.fails_after = 2
    last = streamed(server)[-1]
    assert last == {"type": "error", "error": {"type": "overloaded_error", "message": "gone"}}


def test_anthropics_key() -> None:
    with running(settings(keys=("a-long-key",)), FakePool()) as server:
        plain = {"authorization": ""}
        assert server.client.get("/v1/models", headers=plain).status_code == 401
        for given, status in (("a-long-key", 200), ("another-key", 401)):
            headers = {**plain, "x-api-key": given}
            assert server.client.get("/v1/models", headers=headers).status_code == status
