"""Chats, completions and responses have the right form, over a fake pool."""

from __future__ import annotations

import json
from typing import Any

import pytest
from http_server import USER, Running, events

from paradecode.serve.wire import Failure, WireScores

TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"$ref": "#/$defs/c"}},
                       "$defs": {"c": {"type": "string"}}},
    },
}  # fmt: skip
OTHER = {"type": "function", "function": {"name": "now"}}


def chunks(server: Running, **body: Any) -> list[dict[str, Any]]:
    response = server.chat(stream=True, **body)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    *data, last = events(response)
    assert last == "[DONE]"
    return [json.loads(entry) for entry in data]


def test_a_whole_answer(server: Running) -> None:
    answer = server.chat(model="tiny", include_metrics=True).json()
    assert answer["object"] == "chat.completion"
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": "Hello", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert answer["usage"] == {
        "prompt_tokens": 7, "completion_tokens": 4, "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 3},
        "completion_tokens_details": {
            "accepted_prediction_tokens": 2, "rejected_prediction_tokens": 1, "reasoning_tokens": 0,
        },
    }  # fmt: skip
    assert answer["metrics"]["forwards"] == 2


def test_a_stream(server: Running) -> None:
    first, *middle, last = chunks(server)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [c["choices"][0]["delta"]["content"] for c in middle] == ["Hel", "lo"]
    assert last["choices"][0]["finish_reason"] == "stop"
    assert all("usage" not in chunk for chunk in (first, *middle, last))
    assert len({chunk["id"] for chunk in (first, *middle, last)}) == 1


def test_usage_and_metrics_in_a_stream(server: Running) -> None:
    *parts, last = chunks(server, stream_options={"include_usage": True}, include_metrics=True, n=2)
    assert all(part["usage"] is None for part in parts)
    assert last["choices"] == []
    assert last["usage"]["prompt_tokens"] == 7  # One prompt, two outputs.
    assert last["usage"]["completion_tokens"] == 8
    assert len(last["metrics"]) == 2
    assert next(p["paradecode"] for p in parts if "paradecode" in p) == {
        "forward": 1, "tokens": [5, 6], "commits": [{"forward": 1, "tokens": 2, "text": "Hel"}],
    }  # fmt: skip


def test_every_field_reaches_the_worker(server: Running) -> None:
    sampling = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "presence_penalty": 1,
        "frequency_penalty": -1, "repetition_penalty": 1.5, "min_tokens": 1, "ignore_eos": True,
        "stop": ["x"], "stop_token_ids": [3], "seed": -4, "n": 2, "logit_bias": {"7": 2},
    }  # fmt: skip
    response = server.chat(
        **sampling, max_completion_tokens=9, logprobs=True, top_logprobs=2, priority=-3, timeout=5,
        prediction={"type": "content", "content": [{"type": "text", "text": "guess"}]},
        speculative={"method": "prompt-lookup", "num_speculative_tokens": 3},
        user="u", metadata={"a": "b"}, store=True, service_tier="auto",
    )  # fmt: skip
    assert response.status_code == 200, response.text
    (request,) = server.pool.seen
    assert request.sampling == {**sampling, "max_tokens": 9, "logprobs": 2}
    assert request.prediction == "guess"
    assert request.decoder == {"method": "prompt-lookup", "num_speculative_tokens": 3}
    assert (request.priority, request.salt) == (-3, "")
    assert request.deadline == pytest.approx(5, abs=1)


def test_defaults_are_openais(server: Running) -> None:
    server.chat()
    server.complete()
    chat, text = server.pool.seen
    assert chat.sampling == {"temperature": 1.0}  # The worker knows how much room is left.
    assert text.sampling == {"temperature": 1.0, "max_tokens": 16}
    assert chat.decoder is None
    assert chat.deadline == pytest.approx(600, abs=1)


@pytest.mark.parametrize(("asked", "sent"), [("none", "none"), ("copyspec", "copyspec")])
def test_a_method_by_name(server: Running, asked: str, sent: str) -> None:
    assert server.chat(speculative=asked).status_code == 200
    assert server.pool.seen[0].decoder == sent


def test_settings_of_a_diffusion_method(server: Running) -> None:
    server.chat(model="canvas", diffusion={"block_length": 8})
    server.chat(model="canvas", diffusion={"method": "static", "steps": 4})
    assert [request.decoder for request in server.pool.seen] == [
        {"method": "threshold", "block_length": 8}, {"method": "static", "steps": 4},
    ]  # fmt: skip
    refused = server.chat(model="tiny", diffusion={"steps": 4})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "diffusion")


def test_a_provisional_canvas(server: Running) -> None:
    server.pool.canvas = ["lo", None]
    parts = chunks(server, model="canvas", provisional=True)
    shown = [part["paradecode"] for part in parts if "paradecode" in part]
    assert (shown[0]["forward"], shown[0]["canvas"]) == (1, ["lo", None])


def test_logprobs(server: Running) -> None:
    server.pool.logprobs = WireScores(
        sizes=[2], tokens=[5, 5], logprobs=[-0.5, -0.5], spelled=["Hel", "Hel"]
    )
    content = server.chat(logprobs=True, top_logprobs=1).json()["choices"][0]["logprobs"]["content"]
    assert content[0] == {
        "token": "Hel", "logprob": -0.5, "bytes": [72, 101, 108],
        "top_logprobs": [{"token": "Hel", "logprob": -0.5, "bytes": [72, 101, 108]}],
    }  # fmt: skip
    streamed = [part["choices"][0]["logprobs"] for part in chunks(server, logprobs=True)]
    assert sum(len(entry["content"]) for entry in streamed if entry) == 2
    old = server.complete(logprobs=1).json()["choices"][0]["logprobs"]
    assert old["tokens"] == ["Hel", "Hel"]
    assert old["text_offset"] == [0, 3]
    lines = events(server.complete(logprobs=1, stream=True))[:-1]
    offsets = [json.loads(line)["choices"][0]["logprobs"] for line in lines]
    assert [entry["text_offset"] for entry in offsets if entry] == [[0], [3]]


def test_completions_of_several_prompts(server: Running) -> None:
    answer = server.complete(prompt=["a", "b"], n=2).json()
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in answer["choices"]] == ["Hello"] * 4
    assert answer["usage"]["prompt_tokens"] == 14
    assert [request.prompt.text for request in server.pool.seen] == ["a", "b"]
    assert server.complete(prompt=[[1, 2], [3]]).status_code == 200
    assert [request.prompt.tokens for request in server.pool.seen[2:]] == [[1, 2], [3]]
    lines = events(server.complete(prompt=["a", "b"], stream=True))
    assert {json.loads(line)["choices"][0]["index"] for line in lines[:-1]} == {0, 1}


def test_a_deadline_is_named(server: Running) -> None:
    server.pool.reason = "deadline"
    (choice,) = server.chat().json()["choices"]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("length", "deadline")


def test_constraints(server: Running) -> None:
    schema = {"type": "object"}
    wanted = [
        ({"response_format": {"type": "json_object"}}, "json_object", None),
        ({"response_format": {"type": "json_schema", "json_schema":
            {"name": "a", "strict": True, "schema": schema}}}, "json_schema", schema),
        ({"guided_json": schema}, "json_schema", schema),
        ({"guided_regex": "[0-9]+"}, "regex", "[0-9]+"),
        ({"guided_choice": ["a", "b"]}, "choice", ["a", "b"]),
        ({"guided_grammar": "start: \"a\""}, "lark", "start: \"a\""),
        ({"structured_outputs": {"regex": "a*"}}, "regex", "a*"),
        ({"structured_outputs": {"choice": ["x"]}}, "choice", ["x"]),
        ({"structured_outputs": {"json_object": True}}, "json_object", None),
    ]  # fmt: skip
    for body, kind, value in wanted:
        assert server.chat(**body).status_code == 200, body
        constraint = server.pool.seen[-1].constraint
        assert (constraint.type, constraint.value) == (kind, value)
    assert server.chat(response_format={"type": "text"}).status_code == 200
    assert server.pool.seen[-1].constraint is None


def test_two_constraints_are_refused(server: Running) -> None:
    refused = server.chat(guided_regex="a", response_format={"type": "json_object"})
    assert refused.status_code == 400
    assert "give one constraint" in refused.json()["error"]["message"]


def test_a_forced_call(server: Running) -> None:
    server.pool.texts = ['{"na', 'me": "weather", "arg', 'uments": {"city": "Bergen"}', "}"]
    choice = {"type": "function", "function": {"name": "weather"}}
    answer = server.chat(tools=[TOOL, OTHER], tool_choice=choice).json()["choices"][0]
    (call,) = answer["message"]["tool_calls"]
    assert answer["message"]["content"] is None
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Bergen"}'}
    assert answer["finish_reason"] == "tool_calls"
    (request,) = server.pool.seen
    schema = request.constraint.value
    assert len(schema["anyOf"]) == 1  # Only the function that was named.
    assert schema["anyOf"][0]["properties"]["name"] == {"const": "weather"}
    assert schema["$defs"]["tool_0"]["properties"]["city"]["$ref"] == "#/$defs/tool_0/$defs/c"


def test_a_streamed_call(server: Running) -> None:
    server.pool.texts = ['{"name": "weather", "arguments": {"ci', 'ty": "Ber', 'gen"}}']
    parts = chunks(server, tools=[TOOL], tool_choice="required")
    deltas = [part["choices"][0]["delta"] for part in parts]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["function"] == {"name": "weather", "arguments": ""}
    assert calls[0]["id"].startswith("call_")
    assert [call["function"]["arguments"] for call in calls[1:]] == ['{"ci', 'ty": "Ber', 'gen"}']
    assert parts[-1]["choices"][0]["finish_reason"] == "tool_calls"
    assert not any(delta.get("content") for delta in deltas)


@pytest.mark.parametrize("parallel", [None, True, False])
def test_parallel_calls(server: Running, parallel: bool | None) -> None:
    called = '{"name": "weather", "arguments": {}}'
    server.pool.texts = [called, "\n", called]
    body: dict[str, Any] = {"tools": [TOOL], "parallel_tool_calls": parallel}
    wanted = 1 if parallel is False else 2
    (choice,) = server.chat(**body).json()["choices"]
    assert len(choice["message"]["tool_calls"]) == wanted
    assert choice["finish_reason"] == "tool_calls"
    deltas = [part["choices"][0]["delta"] for part in chunks(server, **body)]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert len({call["index"] for call in calls}) == wanted
    body = {"input": "Hi", "tools": [FLAT], "parallel_tool_calls": parallel}
    answer = server.post("/v1/responses", body).json()
    assert [item["type"] for item in answer["output"]] == ["function_call"] * wanted
    assert answer["parallel_tool_calls"] is (parallel is not False)


def test_the_last_message_is_gone_on_with(server: Running) -> None:
    begun = {"role": "assistant", "content": "```python\n"}
    asked: dict[str, Any] = {"messages": [*USER, begun], "continue_final_message": True}
    assert server.chat(**asked).status_code == 200
    assert server.chat(**asked, add_generation_prompt=False).status_code == 200
    for request in server.pool.seen:
        assert (request.prompt.messages, request.prompt.begun) == (USER, "```python\n")
    assert server.chat(messages=[*USER, begun], add_generation_prompt=True).status_code == 200
    assert server.pool.seen[-1].prompt.begun is None
    for both in (True, False):
        wrong = {"add_generation_prompt": both, "continue_final_message": both}
        error = server.chat(messages=[*USER, begun], **wrong).json()["error"]
        assert error["param"] == "add_generation_prompt"
    for messages in (USER, [begun]):
        error = server.chat(messages=messages, continue_final_message=True).json()["error"]
        assert error["param"] == "messages"


def test_tools_are_told_in_a_message_where_the_template_knows_none(server: Running) -> None:
    server.chat(model="tiny", tools=[TOOL])
    server.chat(model="caller", tools=[TOOL])
    server.chat(model="tiny", tools=[TOOL], tool_choice="none")
    told, template, none = (request.prompt for request in server.pool.seen)
    assert told.tools is None
    assert told.messages[0]["role"] == "system"
    assert '"weather"' in told.messages[0]["content"]
    assert template.tools[0]["function"]["name"] == "weather"
    assert len(template.messages) == 1
    assert (none.tools, len(none.messages)) == (None, 1)


def test_earlier_calls_go_back_to_the_model(server: Running) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "when?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "noon"},
    ]
    server.chat(model="tiny", messages=messages)
    server.chat(model="caller", messages=messages)
    as_text, as_calls = (request.prompt.messages[1] for request in server.pool.seen)
    assert json.loads(as_text["content"]) == {"name": "now", "arguments": {"a": 1}}
    assert as_calls["tool_calls"][0]["function"]["arguments"] == {"a": 1}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL, TOOL]}, "tools"),
        ({"tools": [TOOL], "guided_regex": "a"}, "tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "no"}}},
         "tool_choice.function.name"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"max_tokens": 2, "max_completion_tokens": 3}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 65}, "n"),
        ({"speculative": {"k": 2}}, "speculative.method"),
        ({"speculative": {"method": "draft-model", "model": "/etc"}}, "speculative.model"),
        ({"speculative": "none", "diffusion": {}}, "diffusion"),
        ({"deadline": 601}, "deadline"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url",
          "image_url": {"url": "http://127.0.0.1/x.png"}}]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
         "messages[0].content"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ],
)  # fmt: skip
def test_what_is_refused(server: Running, body: dict[str, Any], param: str) -> None:
    response = server.chat(**body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert error["type"] == "invalid_request_error"
    assert server.pool.seen == []


def test_unknown_fields_are_named_with_the_nearest(server: Running) -> None:
    error = server.chat(max_token=4).json()["error"]
    assert error["code"] == "unknown_field"
    assert "max_tokens" in error["message"]
    error = server.chat(chat_template="{{ 1 }}").json()["error"]
    assert "the template comes with the model" in error["message"]


def test_unknown_models(server: Running) -> None:
    response = server.chat(model="/etc/passwd")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert server.client.get("/v1/models/nope").status_code == 404
    assert server.client.get("/v1/models/tiny").json()["id"] == "tiny"
    listed = server.client.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["tiny", "canvas", "caller"]


def test_the_first_model_is_the_default(server: Running) -> None:
    assert server.chat().json()["model"] == "tiny"


@pytest.mark.parametrize("stream", [False, True])
def test_failures_before_the_answer_have_their_status(server: Running, stream: bool) -> None:
    server.pool.failure = Failure(id="x", status=429, message="later", retry_after=2.2)
    response = server.chat(stream=stream)
    assert response.status_code == 429
    assert response.headers["retry-after"] == "3"
    assert response.json()["error"]["type"] == "rate_limit_error"


def test_a_method_that_is_refused_is_called_speculative(server: Running) -> None:
    server.pool.failure = Failure(
        id="x", status=400, param="decoder",
        message="decoder: 'x' is not usable; use another",
    )  # fmt: skip
    error = server.chat(speculative="x").json()["error"]
    assert error["param"] == "speculative"
    assert error["message"].startswith("speculative: 'x'")


def test_failures_in_a_stream_are_its_last_event(server: Running) -> None:
    server.pool.failure = Failure(id="x", status=500, message="worker died")
    server.pool.fails_after = 2
    data = [json.loads(entry) for entry in events(server.chat(stream=True))]
    assert data[1]["choices"][0]["delta"]["content"] == "Hel"
    assert data[-1]["error"]["message"] == "worker died"
    assert server.chat().status_code == 500


def test_responses(server: Running) -> None:
    body = {"input": "Hi", "instructions": "Be kind.", "max_output_tokens": 5, "top_p": 0.5}
    answer = server.post("/v1/responses", body).json()
    assert answer["status"] == "completed"
    assert answer["output"][0]["content"][0]["text"] == "Hello"
    assert answer["usage"]["input_tokens"] == 7
    (request,) = server.pool.seen
    assert request.prompt.messages == [
        {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"},
    ]  # fmt: skip
    assert request.sampling == {"temperature": 1.0, "top_p": 0.5, "max_tokens": 5}
    stream = server.post("/v1/responses", {**body, "stream": True})
    data = [json.loads(entry) for entry in events(stream)]
    assert [entry["sequence_number"] for entry in data] == list(range(len(data)))
    assert [d["delta"] for d in data if d["type"].endswith("text.delta")] == ["Hel", "lo"]
    assert data[-1]["type"] == "response.completed"
    assert stream.text.startswith("event: response.created\n")


@pytest.mark.parametrize(
    "extra",
    [{"previous_response_id": "r"}, {"background": True}, {"input": []},
     {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}],
)  # fmt: skip
def test_other_parts_of_responses_are_refused(server: Running, extra: dict[str, Any]) -> None:
    response = server.post("/v1/responses", {"input": "Hi", **extra})
    assert response.status_code == 400
    assert response.json()["error"]["param"].startswith(next(iter(extra)))


def test_a_response_that_fails_in_its_stream(server: Running) -> None:
    server.pool.failure = Failure(id="x", status=500, message="died")
    server.pool.fails_after = 2
    data = [
        json.loads(e) for e in events(server.post("/v1/responses", {"input": "a", "stream": True}))
    ]
    assert data[-1]["type"] == "response.failed"
    assert data[-1]["response"]["error"]["message"] == "died"


def test_tokens(server: Running) -> None:
    answer = server.post("/tokenize", {"prompt": "ab", "return_token_strs": True}).json()
    assert answer == {
        "count": 2, "max_model_len": 512, "tokens": [1, 2], "token_strs": ["a", "b"],
    }  # fmt: skip
    assert server.post("/detokenize", {"tokens": [1, 2]}).json()["prompt"] == "ab"
    assert server.post("/tokenize", {}).status_code == 400
    assert server.post("/tokenize", {"prompt": "a", "messages": []}).status_code == 400


def test_health_follows_the_pool(server: Running) -> None:
    assert server.client.get("/health").json() == {"status": "ok"}
    server.pool.healthy = False
    assert server.client.get("/health").status_code == 503
    server.pool.healthy, server.pool.draining = True, True
    assert server.client.get("/health").status_code == 503


FLAT = {"type": "function", "name": "weather", "parameters": {"type": "object"}}


def test_calls_of_responses(server: Running) -> None:
    server.pool.texts = ['{"name": "weather", "arg', 'uments": {"city": "Rome"}}']
    body = {"input": "Hi", "tools": [FLAT], "tool_choice": {"type": "function", "name": "weather"}}
    answer = server.post("/v1/responses", body).json()
    (item,) = answer["output"]
    assert (item["type"], item["name"]) == ("function_call", "weather")
    assert json.loads(item["arguments"]) == {"city": "Rome"}
    assert server.pool.seen[0].constraint.type == "json_schema"
    found = [json.loads(e) for e in events(server.post("/v1/responses", {**body, "stream": True}))]
    assert [event["type"].removeprefix("response.") for event in found] == [
        "created", "in_progress", "output_item.added", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert [event["sequence_number"] for event in found] == list(range(7))
    said = {"type": "function_call_output", "call_id": item["call_id"], "output": "sun"}
    past = [{"role": "user", "content": "Hi"}, item, said]
    assert server.post("/v1/responses", {"model": "caller", "input": past}).status_code == 200
    messages = server.pool.seen[-1].prompt.messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"] == item["call_id"]


def test_text_and_calls_of_responses_are_items_of_their_own(server: Running) -> None:
    server.pool.texts = ["So: ", '<tool_call>{"name": "weather", "arguments": {}}</tool_call>']
    answer = server.post("/v1/responses", {"input": "Hi", "tools": [FLAT]}).json()
    assert [item["type"] for item in answer["output"]] == ["message", "function_call"]
    assert answer["output"][0]["content"][0]["text"] == "So: "


def test_schemas_of_responses(server: Running) -> None:
    chosen = {"type": "json_schema", "name": "a", "strict": True,
              "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}  # fmt: skip
    answer = server.post("/v1/responses", {"input": "Hi", "text": {"format": chosen}}).json()
    assert answer["text"]["format"]["type"] == "json_schema"
    constraint = server.pool.seen[0].constraint
    assert constraint.value == {**chosen["schema"], "additionalProperties": False}
