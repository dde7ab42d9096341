"""Agents' conversations are accepted as agents send them, and fields without effect are named."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from http_server import USER, FakePool, Running, running, settings

from paradecode.serve.wire import Failure

IGNORED = "x-paradecode-ignored"
CACHED = {"cache_control": {"type": "ephemeral"}}
OBJECT = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
READ = {"name": "Read", "description": "Reads a file.", "input_schema": OBJECT}
FLAT = {"type": "function", "name": "shell", "description": "Runs it.", "parameters": OBJECT}
CALL = '{"name": "Read", "arguments": {"path": "a.py"}}'


def claude(server: Running, **body: Any) -> Any:
    said = {"model": "caller", "max_tokens": 8, "messages": USER, "stream": False}
    return server.post("/v1/messages?beta=true", {**said, **body})


def codex(server: Running, **body: Any) -> Any:
    return server.post("/v1/responses", {"model": "caller", "input": "Hi", **body})


def turns(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [*USER, {"role": "assistant", "content": [*blocks]}, *USER]


THOUGHT = {"type": "thinking", "thinking": "Hm.", "signature": "abc="}
USE = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"path": "a.py"}}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
FORMAT = {"type": "json_schema", "schema": OBJECT}
EDITS = {"edits": [{"type": "clear_tool_uses_20250919"}]}


def result(content: Any, **more: Any) -> list[dict[str, Any]]:
    said = {"type": "tool_result", "tool_use_id": "t1", "content": content, **more}
    return [*turns(USE)[:2], {"role": "user", "content": [{**said, **CACHED}]}]


CLAUDE: list[tuple[dict[str, Any], str]] = [
    ({"system": [{"type": "text", "text": "Be brief.", **CACHED}]}, "system.cache_control"),
    ({"thinking": {"type": "enabled", "budget_tokens": 31999}}, "thinking.budget_tokens"),
    ({"thinking": {"type": "adaptive", "display": "summarized"}}, ""),
    ({"thinking": {"type": "disabled"}}, ""),
    ({"messages": turns(THOUGHT, {"type": "text", "text": "So."})},
     "messages.content[thinking]"),
    ({"messages": turns({"type": "redacted_thinking", "data": "x"}, USE)}, "redacted_thinking"),
    ({"messages": turns(THOUGHT)}, "thinking"),
    ({"messages": [{"role": "system", "content": "Be brief."}, *USER]}, ""),
    ({"messages": [*USER, {"role": "system", "content": [{"type": "text", "text": "Now."}]}]}, ""),
    ({"context_management": EDITS}, "context_management"),
    ({"output_config": {"effort": "high"}}, "output_config.effort"),
    ({"output_config": {"format": FORMAT}}, ""),
    ({"tools": [{**READ, "eager_input_streaming": True, **CACHED}]}, "tools.eager_input_streaming"),
    ({"tools": [{**READ, "defer_loading": False, "input_examples": []}]}, "tools.defer_loading"),
    ({"tools": [{**READ, "name": "mcp__server__" + "x" * 115}]}, ""),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 8}]},
     "web_search_20250305"),
    ({"tools": [READ, {"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "auto"}},
     "bash_20250124"),
    ({"tools": [{"type": "computer_20991231", "name": "c"}],
      "tool_choice": {"type": "tool", "name": "c"}}, "computer_20991231"),
    ({"tools": [{"type": "memory_20250818", "name": "m"}], "tool_choice": {"type": "any"}},
     "memory_20250818"),
    ({"mcp_servers": [], "container": None, "service_tier": "auto", "speed": "fast"}, "speed"),
    ({"mcp_servers": [{"type": "url", "url": "http://x", "name": "x"}]}, "mcp_servers"),
    ({"metadata": {"user_id": "u" * 900}}, "metadata"),
    ({"betas": ["a"], "max_tokens": 32_000}, "betas"),
    ({"messages": result([PNG, {"type": "text", "text": "a.png"}])}, "content.content[image]"),
    ({"messages": result(None)}, ""),
    ({"messages": result([{"type": "tool_reference", "tool_name": "x"}])}, "tool_reference"),
    ({"messages": turns({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                        {"type": "web_search_tool_result", "tool_use_id": "s", "content": []})},
     "server_tool_use"),
    ({"a_field_of_next_year": {"b": [1]}, "nothing_at_all": None}, "a_field_of_next_year"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "named"), CLAUDE, ids=range(len(CLAUDE)))
def test_claude_codes_shapes(server: Running, body: dict[str, Any], named: str) -> None:
    answer = claude(server, **body)
    assert answer.status_code == 200, answer.text
    assert named in answer.headers.get(IGNORED, "")
    counted = {**body, "messages": body.get("messages", USER), "model": "caller"}
    assert server.post("/v1/messages/count_tokens", counted).status_code == 200


def test_thinking_is_the_templates_to_do(server: Running) -> None:
    for kind in ("enabled", "adaptive", "disabled"):
        assert claude(server, thinking={"type": kind}).status_code == 200
    said = [request.prompt.variables["enable_thinking"] for request in server.pool.seen]
    assert said == [True, True, False]


def test_what_a_tool_has_shown(server: Running) -> None:
    parts = [PNG, {"type": "text", "text": "a.png"}]
    assert claude(server, messages=result(parts)).status_code == 200
    assert claude(server, messages=result("no such file", is_error=True)).status_code == 200
    image, failed = (request.prompt.messages[-1] for request in server.pool.seen)
    assert image == {"role": "tool", "tool_call_id": "t1", "content": "[image left out]\na.png"}
    assert failed["content"] == "Error: no such file"


def test_results_follow_the_order_of_their_calls(server: Running) -> None:
    """Claude Code sends what has ended first, and a template shows only the order."""
    results = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": str(n)} for n in (2, 1)]
    said = {"role": "user", "content": [*results, {"type": "text", "text": "Go on."}]}
    called = turns(USE, {**USE, "id": "t2"})[:2]
    assert claude(server, messages=[*called, said, *called, said]).status_code == 200
    shown = [(one["role"], one["content"]) for one in server.pool.seen[0].prompt.messages]
    assert shown[2:5] == shown[7:10] == [("tool", "1"), ("tool", "2"), ("user", "Go on.")]


def test_texts_in_other_blocks_are_read(server: Running) -> None:
    document = {"type": "document", "title": "T", "source": {
        "type": "text", "media_type": "text/plain", "data": "All of it."}}  # fmt: skip
    found = {"type": "search_result", "source": "s", "title": "t",
             "content": [{"type": "text", "text": "Found."}]}  # fmt: skip
    summary = {"type": "compaction", "content": "They met."}
    messages = [{"role": "user", "content": [document, found]}, *turns(summary)[1:]]
    assert claude(server, messages=messages).status_code == 200
    first, second = server.pool.seen[0].prompt.messages[:2]
    assert first["content"] == "All of it.\nFound."
    assert second["content"] == "They met."
    pdf = {**document, "source": {"type": "base64", "data": "AA=="}}
    refused = claude(server, messages=[{"role": "user", "content": [pdf]}])
    assert (refused.status_code, "read text" in refused.text) == (400, True)


def test_an_answers_schema_in_anthropics_form(server: Running) -> None:
    assert claude(server, output_config={"format": FORMAT}).status_code == 200
    assert server.pool.seen[0].constraint.value["required"] == ["path"]


REASONING = {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "x"}
CUSTOM = {"type": "custom", "name": "apply_patch", "format": {"type": "text"}}
PATCH = {"type": "custom_tool_call", "id": "c", "call_id": "c1", "name": "apply_patch",
         "input": "*** Begin", "status": "completed"}  # fmt: skip
EXEC = {"type": "exec", "command": ["ls"], "env": {}}
MESSAGE = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}

CODEX: list[tuple[dict[str, Any], str]] = [
    ({"store": False, "stream": False, "parallel_tool_calls": False}, ""),
    ({"include": ["reasoning.encrypted_content"]}, "include"),
    ({"reasoning": {"effort": "high", "summary": "auto"}}, "reasoning"),
    ({"text": {"verbosity": "low"}}, "text.verbosity"),
    ({"text": {"verbosity": "low", "format": {"type": "json_schema", "name": "a",
                                              "schema": OBJECT, "strict": True}}}, "verbosity"),
    ({"prompt_cache_key": "k", "client_metadata": {"a": "b"}}, "client_metadata"),
    ({"background": False, "max_tool_calls": None, "truncation": "auto"}, "truncation"),
    ({"service_tier": "priority", "prompt": None, "conversation": None}, "service_tier"),
    ({"tools": [FLAT, {"type": "web_search", "external_web_access": True}]}, "tools[web_search]"),
    ({"tools": [FLAT, {"type": "web_search_preview"}]}, "tools[web_search_preview]"),
    ({"tools": [CUSTOM, {"type": "local_shell"}]}, "tools[local_shell]"),
    ({"tools": [{"type": "namespace", "name": "n", "description": "d", "tools": [FLAT]}]},
     "tools[namespace]"),
    ({"tools": [{"type": "mcp", "server_label": "x", "server_url": "http://x"},
                {"type": "computer_use_preview"}, {"type": "of_next_year"}]},
     "tools[mcp], tools[computer_use_preview], tools[of_next_year]"),
    ({"tools": [{**CUSTOM, "format": {"type": "grammar", "syntax": "lark", "definition": "a"}}]},
     "tools.format[lark]"),
    ({"tools": [CUSTOM], "tool_choice": "required"}, ""),
    ({"tools": [FLAT, CUSTOM], "tool_choice": {"type": "custom", "name": "apply_patch"}}, ""),
    ({"tools": [FLAT], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [
        {"type": "function", "name": "shell"}, {"type": "mcp", "server_label": "x"}]}}, "[mcp]"),
    ({"input": [MESSAGE, REASONING, MESSAGE]}, "input[reasoning]"),
    ({"input": [MESSAGE, PATCH,
                {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"}]}, ""),
    ({"input": [MESSAGE, {"type": "local_shell_call", "call_id": "c2", "status": "completed",
                          "action": EXEC},
                {"type": "local_shell_call_output", "id": "c2", "output": "a.py"}]}, ""),
    ({"input": [MESSAGE, {"type": "web_search_call", "id": "w", "status": "completed",
                          "action": {"type": "search", "query": "x"}}]}, "input[web_search_call]"),
    ({"input": [{**MESSAGE, "role": "developer"}, MESSAGE, {"type": "ghost_snapshot", "a": 1}]},
     "input[ghost_snapshot]"),
    ({"input": [MESSAGE, {**FLAT, "type": "function_call", "call_id": "c", "arguments": "{}",
                          "namespace": "n", "description": None, "parameters": None},
                {"type": "function_call_output", "call_id": "c", "output": [
                    {"type": "input_text", "text": "x"},
                    {"type": "input_image", "image_url": "data:"}]}]}, "[input_image]"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "named"), CODEX, ids=range(len(CODEX)))
def test_codexs_shapes(server: Running, body: dict[str, Any], named: str) -> None:
    answer = codex(server, **body)
    assert answer.status_code == 200, answer.text
    assert named in answer.headers.get(IGNORED, "")


def test_earlier_calls_of_other_tools_stay_in_the_conversation(server: Running) -> None:
    for body, _ in CODEX:
        if PATCH in body.get("input", ()):
            assert codex(server, **body).status_code == 200
    (_, called, said) = server.pool.seen[0].prompt.messages
    function = called["tool_calls"][0]["function"]
    assert function == {"name": "apply_patch", "arguments": {"input": "*** Begin"}}
    assert said == {"role": "tool", "tool_call_id": "c1", "content": "ok"}


@pytest.mark.parametrize("output", [5, True, None, [1], [], {}, {"a": 1}, [{"stdout": "x"}]])
def test_any_output_of_a_tool_is_text(server: Running, output: Any) -> None:
    said = {"type": "shell_call_output", "call_id": "c", "output": output}
    assert codex(server, input=[MESSAGE, said]).status_code == 200
    text = server.pool.seen[0].prompt.messages[1]["content"]
    assert text == ("" if not output else json.dumps(output))


def test_allowed_tools(server: Running) -> None:
    other = {**FLAT, "name": "other"}
    chosen = {"type": "allowed_tools", "mode": "required",
              "tools": [{"type": "function", "name": "other"}]}  # fmt: skip
    assert codex(server, tools=[FLAT, other], tool_choice=chosen).status_code == 200
    (request,) = server.pool.seen
    assert [tool["function"]["name"] for tool in request.prompt.tools] == ["other"]
    assert request.constraint.value["anyOf"][0]["properties"]["name"] == {"const": "other"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [("/v1/messages", {"messages": USER, "max_tokens": 5, "mesages": []}, "mesages"),
     ("/v1/responses", {"input": "a", "inptu": "b"}, "inptu"),
     ("/v1/responses", {"input": "a", "tools": [{**FLAT, "paramaters": {}}]},
      "tools[0].paramaters"),
     ("/v1/responses", {"input": "a", "tools": [{**FLAT, "type": "functon"}]}, "tools[0].type"),
     ("/v1/chat/completions", {"messages": USER, "stremm": True}, "stremm"),
     ("/v1/chat/completions", {"messages": [{**USER[0], "nmae": "x"}]}, "messages[0].nmae"),
     ("/v1/responses", {"input": "a", "background": True}, "background"),
     ("/v1/responses", {"input": "a", "conversation": "c"}, "conversation"),
     ("/v1/responses", {"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
     ("/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": [PNG]}]},
      "messages[0].content[0]")],
)  # fmt: skip
def test_what_is_still_refused(
    server: Running, path: str, body: dict[str, Any], param: str
) -> None:
    answer = server.post(path, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


def test_a_failure_beside_a_field_of_another_route(server: Running) -> None:
    server.pool.failure = Failure(id="", status=400, message="prompt: no", param="prompt")
    answer = codex(server, guided_regex="x")
    assert (answer.status_code, answer.headers[IGNORED]) == (400, "guided_regex")
    assert answer.json()["error"]["param"] == "input"


def test_many_unknown_names_are_refused(server: Running) -> None:
    many = {f"name_number_{number:05}": 1 for number in range(300)}
    assert "64 unknown fields" in server.chat(**many).json()["error"]["message"]


def test_a_strict_server_refuses_what_it_would_ignore() -> None:
    with running(settings(strict=True), FakePool()) as server:
        assert server.chat(user="u", a_field_of_next_year=None).status_code == 200
        for answer in (
            server.chat(a_field_of_next_year=1),
            codex(server, tools=[FLAT, {"type": "web_search"}]),
            claude(server, messages=turns(THOUGHT)),
            claude(server, messages=result([PNG])),
        ):
            assert answer.status_code == 400, answer.text


def test_models_have_other_names() -> None:
    pool = FakePool()
    aliases = (("gpt-5", "canvas"), ("claude-*", "caller"))
    with running(settings(aliases=aliases), pool) as server:
        assert claude(server, model="claude-opus-4-1-20250805").json()["model"] == "caller"
        assert server.chat(model="gpt-5").json()["model"] == "canvas"
        assert server.client.get("/v1/models/claude-x").json()["id"] == "caller"
        assert server.chat(model="gpt-4").status_code == 404
    for wrong in (("x", "nothing"), ("", "tiny")):
        with pytest.raises(ValueError, match="alias"):
            settings(aliases=(wrong,))


SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": OBJECT}}


@pytest.mark.parametrize("stream", [False, True])
def test_tools_and_a_schema_go_together(server: Running, stream: bool) -> None:
    function = {"name": "Read", "parameters": OBJECT}
    asked = {"tools": [{"type": "function", "function": function}], "response_format": SCHEMA}
    server.pool.texts = [CALL]
    answer = server.chat(**asked, stream=stream)
    assert answer.status_code == 200, answer.text
    assert '"tool_calls"' in answer.text
    (call, answered) = server.pool.seen[0].constraint.value["anyOf"]
    assert call["properties"]["name"] == {"const": "Read"}
    assert answered == {"$ref": "#/$defs/answer"}
    assert server.pool.seen[0].constraint.value["$defs"]["answer"]["required"] == ["path"]
    server.chat(**asked, tool_choice="none")
    assert server.pool.seen[1].constraint.value["required"] == ["path"]
    server.chat(**{**asked, "response_format": {"type": "json_object"}})
    assert server.pool.seen[2].constraint.type == "json_object"
    lost = {**SCHEMA, "json_schema": {"name": "a", "schema": {"not": {}}}}
    assert server.chat(**{**asked, "response_format": lost}).headers[IGNORED] == "not"


def test_the_log_names_what_had_no_effect(
    server: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(settings(log_requests=True), FakePool()) as logged:
        assert logged.chat(metadata={"a": "secret"}, n=1).status_code == 200
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line[:1] == "{"]
    line = next(line for line in lines if line.get("event") == "request")
    assert (line["ignored"], line["without_effect"]) == (1, ["metadata"])
    assert "secret" not in json.dumps(lines)


THINKS = ["<think>\nHm", ".</think>\n\nSo."]


def test_thoughts_of_a_chat(server: Running) -> None:
    server.pool.texts = THINKS
    message = server.chat().json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("Hm.", "So.")
    assert '"delta":{"reasoning_content":"Hm"}' in server.chat(stream=True).text
    plain = server.chat(separate_reasoning=False).json()["choices"][0]["message"]
    assert plain["content"] == "".join(THINKS)


@pytest.mark.parametrize("stream", [False, True])
def test_a_thought_that_the_template_has_begun(server: Running, stream: bool) -> None:
    server.pool.texts, server.pool.thinks = ["Hm", ".</thi", "nk>\n\nSo."], True
    text = server.chat(stream=stream).text
    assert "think>" not in text
    assert text.count('"reasoning_content":') == (2 if stream else 1)
    assert '"content":"So."' in text


def test_thoughts_of_a_message(server: Running) -> None:
    server.pool.texts = THINKS
    thought, text = claude(server).json()["content"]
    assert thought == {"type": "thinking", "thinking": "Hm.", "signature": ""}
    assert text == {"type": "text", "text": "So."}
    kinds = [line[7:] for line in claude(server, stream=True).text.splitlines() if line[:1] == "e"]
    assert kinds == [
        "message_start", "content_block_start", *["content_block_delta"] * 3, "content_block_stop",
        "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip


def test_thoughts_of_a_response(server: Running) -> None:
    server.pool.texts = THINKS
    thought, said = codex(server).json()["output"]
    assert thought["type"] == "reasoning"
    assert thought["content"] == [{"type": "reasoning_text", "text": "Hm."}]
    assert said["content"][0]["text"] == "So."
    again = codex(server, input=[thought, said, MESSAGE])
    assert again.headers[IGNORED] == "input[reasoning], input.id, input.status"
    events = codex(server, stream=True).text
    assert events.count("event: response.reasoning_text.delta") == 2
    assert "event: response.reasoning_text.done" in events


def test_a_response_has_every_field_of_its_schema(server: Running) -> None:
    required = {
        "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model",
        "previous_response_id", "instructions", "output", "error", "tools", "tool_choice",
        "truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty",
        "frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage",
        "max_output_tokens", "max_tool_calls", "store", "background", "service_tier", "metadata",
        "safety_identifier", "prompt_cache_key",
    }  # fmt: skip
    assert required <= codex(server).json().keys()
    first = codex(server, stream=True).text.split("data: ")[1].split("\n")[0]
    assert required <= json.loads(first)["response"].keys()


def test_nothing_is_stored_unless_the_server_is_told_to(server: Running) -> None:
    answer = codex(server, store=True)
    assert (answer.json()["store"], answer.headers[IGNORED]) == (False, "store")
    assert server.client.get(f"/v1/responses/{answer.json()['id']}").status_code == 404
    error = codex(server, previous_response_id="resp_1").json()["error"]
    assert error["param"] == "previous_response_id"


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_goes_on_behind_a_stored_response(stream: bool) -> None:
    pool = FakePool()
    chosen = settings(stored_responses=2, keys=("a-long-key", "another-key"))
    with running(chosen, pool) as server:
        pool.texts = ["<think>Hm</think>", CALL]
        tool = {"type": "function", "name": "Read", "parameters": OBJECT}
        asked = codex(server, instructions="Be brief.", tools=[tool], stream=stream)
        data = [line[6:] for line in asked.text.splitlines() if line.startswith("data: ")]
        first = json.loads(data[-1])["response"] if stream else asked.json()
        path = f"/v1/responses/{first['id']}"
        assert server.client.get(path).json() == first
        (call,) = [item for item in first["output"] if item["type"] == "function_call"]
        said = {"type": "function_call_output", "call_id": call["call_id"], "output": "x = 1"}
        pool.texts = ["One."]
        more = {"input": [said], "previous_response_id": first["id"]}
        second = codex(server, **more).json()
        assert second["previous_response_id"] == first["id"]
        roles = [(m["role"], m["content"]) for m in pool.seen[-1].prompt.messages]
        assert roles == [("user", "Hi"), ("assistant", ""), ("tool", "x = 1")]
        assert pool.seen[-1].prompt.messages[1]["tool_calls"][0]["function"]["name"] == "Read"
        other = {"authorization": "Bearer another-key"}
        assert server.client.get(path, headers=other).status_code == 404
        refused = server.post("/v1/responses", {"model": "caller", **more}, headers=other)
        assert refused.json()["error"]["code"] == "previous_response_not_found"
        assert codex(server, store=False).json()["store"] is False
        assert server.client.delete(path).json()["deleted"] is True
        assert server.client.get(path).status_code == 404
        last = [codex(server).json()["id"] for _ in range(2)]
        gone = server.client.get(f"/v1/responses/{second['id']}").status_code
        assert (gone, server.client.get(f"/v1/responses/{last[0]}").status_code) == (404, 200)


@pytest.mark.parametrize(
    ("path", "asked", "thoughts", "named"),
    [("chat/completions", {"reasoning_effort": "low"}, 1024, "reasoning_effort"),
     ("chat/completions", {"reasoning_effort": "high"}, None, "reasoning_effort"),
     ("chat/completions", {"reasoning_effort": "none"}, 0, "reasoning_effort"),
     ("chat/completions", {"reasoning_budget": 7, "reasoning_effort": "low"}, 7, "_budget"),
     ("chat/completions", {"reasoning_budget": -1}, None, "reasoning_budget"),
     ("chat/completions", {"thinking_token_budget": 9}, 9, "thinking_token_budget"),
     ("responses", {"reasoning": {"effort": "minimal"}}, 0, "reasoning.effort"),
     ("responses", {"reasoning": {"effort": "medium"}}, 4096, "reasoning.effort"),
     ("messages", {"thinking": {"type": "enabled", "budget_tokens": 2000}}, 2000, "budget_tokens"),
     ("messages", {"output_config": {"effort": "low"}}, 1024, "output_config.effort")],
)  # fmt: skip
def test_budgets_of_thoughts(
    path: str, asked: dict[str, Any], thoughts: int | None, named: str
) -> None:
    pool = FakePool()
    pool.ready["thinker"] = replace(pool.ready["caller"], thoughts=True)
    own = {"input": "Hi"} if path == "responses" else {"messages": USER, "max_tokens": 9}
    with running(settings(names=("thinker", "caller")), pool) as server:
        told = [server.post(f"/v1/{path}", {"model": name, **own, **asked})
                for name in ("thinker", "caller")]  # fmt: skip
    assert [answer.status_code for answer in told] == [200, 200]
    thinks, other = pool.seen
    assert (thinks.thoughts, other.thoughts) == (thoughts, None)
    assert named not in told[0].headers.get(IGNORED, "")
    assert named in told[1].headers[IGNORED]
    off = {"enable_thinking": False} if thoughts == 0 else None
    assert thinks.prompt.variables == (off if path != "messages" or off else ANY)


@pytest.mark.parametrize("wrong", [-2, 1.5, "7", True, [1], 1 << 40])
def test_wrong_budgets_are_refused(server: Running, wrong: Any) -> None:
    assert server.chat(reasoning_budget=wrong).json()["error"]["param"] == "reasoning_budget"
    assert claude(server, thinking={"type": "enabled", "budget_tokens": wrong}).status_code == 400
    assert codex(server, reasoning={"effort": [wrong]}).status_code == 400
