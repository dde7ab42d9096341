"""Custom tools: the model calls them as functions with one text, and clients see the text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from http_server import Running, events

from paradecode.serve.tool_calls import InputReader

PATCH = '*** Begin\n"é" \\ 😀\n*** End'
CALL = json.dumps({"name": "patch", "arguments": {"input": PATCH}})
LONG = '{"patch": "' + "a" * 400
REGEX = {"syntax": "regex", "definition": "a|b"}
FLAT = {"type": "custom", "name": "patch", "description": "Edits."}
OF_CHAT = {"type": "custom", "custom": {"name": "patch", "description": "Edits."}}


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 100])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [(json.dumps({"input": PATCH}), PATCH),
     (' { "input" : "a" , "other": "b"}', "a"),
     (r'{"input": "\ud83d\ude00\\ud83d\ud83dx\u00e9"}', "😀\\ud83d\ufffdxé"),
     (r'{"input": "a\q\u12"}', r"a\q\u12"),
     ('{"input": "cut', "cut"), (r'{"input": "cut\u12', "cut\\u12"),
     ('{"input": ""}', ""), (LONG, LONG), ('{"patch": "a"}', '{"patch": "a"}'), ("[1]", "[1]")],
)  # fmt: skip
def test_an_input_however_it_is_cut(arguments: str, text: str, size: int) -> None:
    reader = InputReader()
    pieces = [arguments[start : start + size] for start in range(0, len(arguments), size)]
    assert "".join([*map(reader.feed, pieces), reader.finish()]) == text


def test_a_call_of_a_response(server: Running) -> None:
    server.pool.texts = [CALL[:60], CALL[60:]]
    body = {"model": "caller", "input": "Hi", "tools": [FLAT]}
    (item,) = server.post("/v1/responses", body).json()["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "patch", PATCH)
    told = [
        json.loads(data) for data in events(server.post("/v1/responses", {**body, "stream": True}))
    ]
    kinds = [each["type"] for each in told]
    assert kinds[2] == "response.output_item.added"
    assert kinds[-3:] == [
        "response.custom_tool_call_input.done", "response.output_item.done", "response.completed",
    ]  # fmt: skip
    deltas = [each["delta"] for each in told if each["type"].endswith("_input.delta")]
    assert len(deltas) > 1
    assert "".join(deltas) == told[-3]["input"] == told[-2]["item"]["input"] == PATCH
    said = {"type": "custom_tool_call_output", "call_id": item["call_id"], "output": "Done."}
    assert server.post("/v1/responses", {**body, "input": [item, said]}).status_code == 200
    called, result = server.pool.seen[-1].prompt.messages
    assert called["tool_calls"][0]["function"]["arguments"] == {"input": PATCH}
    assert (result["role"], result["content"]) == ("tool", "Done.")


def test_a_call_of_a_chat(server: Running) -> None:
    server.pool.texts = [CALL[:60], CALL[60:]]
    choice = server.chat(model="caller", tools=[OF_CHAT]).json()["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    assert (call["type"], call["custom"]) == ("custom", {"name": "patch", "input": PATCH})
    assert choice["finish_reason"] == "tool_calls"
    told = events(server.chat(model="caller", tools=[OF_CHAT], stream=True))[:-1]
    deltas = [json.loads(data)["choices"][0]["delta"] for data in told]
    parts = [part for delta in deltas for part in delta.get("tool_calls", ())]
    assert "".join(part["custom"]["input"] for part in parts) == PATCH


@pytest.mark.parametrize("route", ["responses", "chat/completions"])
def test_a_forced_call_follows_an_expression(server: Running, route: str) -> None:
    flat = route == "responses"
    own = {"input": "Hi"} if flat else {"messages": [{"role": "user", "content": "Hi"}]}
    form = {"type": "grammar", **(REGEX if flat else {"grammar": REGEX})}
    named: dict[str, Any] = {"name": "patch", "format": form}
    tool = {"type": "custom", **(named if flat else {"custom": named})}
    choice = {"type": "custom", **({"name": "patch"} if flat else {"custom": {"name": "patch"}})}
    for chosen in (choice, "required"):
        body = {"model": "caller", **own, "tools": [tool], "tool_choice": chosen}
        assert server.post(f"/v1/{route}", body).status_code == 200
        constraint = server.pool.seen[-1].constraint.value
        assert constraint["$defs"]["tool_0"]["properties"]["input"]["pattern"] == "^(?:a|b)$"
        (shown,) = server.pool.seen[-1].prompt.tools
        assert "regex grammar:\na|b" in shown["function"]["description"]
    other = {"type": "custom", **({"name": "x"} if flat else {"custom": {"name": "x"}})}
    assert server.post(f"/v1/{route}", {**body, "tool_choice": other}).status_code == 400


@pytest.mark.parametrize(
    "wrong",
    [{"name": 5}, {"name": "a b"}, {"name": "a", "format": 5},
     {"name": "a", "format": {"type": []}},
     {"name": "a", "format": {"type": "grammar", "syntax": "ebnf", "definition": "a"}},
     {"name": "a", "format": {"type": "grammar", "syntax": "regex", "definition": ["a"]}}, {}],
)  # fmt: skip
def test_wrong_custom_tools_are_refused(server: Running, wrong: dict[str, Any]) -> None:
    body = {"model": "caller", "input": "Hi", "tools": [{"type": "custom", **wrong}]}
    answer = server.post("/v1/responses", body)
    assert (answer.status_code, answer.json()["error"]["param"][:8]) == (400, "tools[0]")
