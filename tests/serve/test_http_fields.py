"""Fields of other servers' clients are accepted, ignored or refused as docs/serve.md says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from http_server import USER, FakePool, Running, running, settings

from paradecode.serve.failures import TooLong
from paradecode.serve.protocol.harmless import HarmlessInChoices
from paradecode.serve.protocol.table import UNUSED as TABLE
from paradecode.serve.wire import Failure

SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}}
SAID = {
    "modalities": ["text"], "suffix": "", "skip_special_tokens": True,
    "detokenize": True, "include_stop_str_in_output": False,
    "no_stop_trim": False, "return_token_ids": False, "return_tokens_as_token_ids": False,
    "return_hidden_states": False, "logits_processors": [], "functions": [],
    "function_call": "auto", "audio": None, "prompt_embeds": None, "truncate_prompt_tokens": None,
    "lora_path": None,
}  # fmt: skip
UNUSED = {name: {"a": ["b"]} for name in f"{TABLE['Common']} {TABLE['Sampled']}".split()}
OTHER = {
    "modalities": ["text", "audio"], "suffix": "x", "skip_special_tokens": False,
    "return_token_ids": True, "no_stop_trim": 0.0, "lora_path": "a",
    "function_call": {"name": "f"}, "audio": {"voice": "a"}, "logits_processors": ["x"],
}  # fmt: skip


def test_every_harmless_field_is_sent_here() -> None:
    assert set(HarmlessInChoices.model_fields) <= {*SAID}


@pytest.mark.parametrize("route", ["chat", "complete"])
def test_harmless_fields_change_nothing(server: Running, route: str) -> None:
    ask = getattr(server, route)
    assert ask().status_code == 200
    answer = ask(**SAID, **UNUSED)
    assert answer.status_code == 200
    assert answer.headers["x-paradecode-ignored"].startswith("user, metadata, store")
    plain, full = server.pool.seen
    assert (plain.sampling, plain.prompt) == (full.sampling, full.prompt)


@pytest.mark.parametrize(("name", "value"), OTHER.items())
def test_a_value_that_asks_for_something_else_is_refused(
    server: Running, name: str, value: Any
) -> None:
    answer = server.chat(**{name: value})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(name)


def test_llama_cpps_names(server: Running) -> None:
    assert server.chat(n_predict=7, repeat_penalty=1.5).status_code == 200
    assert server.chat(n_predict=-1).status_code == 200
    limited, free = (request.sampling for request in server.pool.seen)
    assert (limited["max_tokens"], limited["repetition_penalty"]) == (7, 1.5)
    assert "max_tokens" not in free
    assert server.chat(n_predict=7, max_tokens=8).json()["error"]["param"] == "n_predict"


def test_variables_of_the_template(server: Running) -> None:
    chosen = {"enable_thinking": False, "level": "low", "budget": 3}
    assert server.chat(chat_template_kwargs=chosen).status_code == 200
    assert server.pool.seen[0].prompt.variables == chosen
    for name in ("messages", "tools", "bos_token", "chat_template", "X", "__class__"):
        assert server.chat(chat_template_kwargs={name: "x"}).status_code == 400
    assert server.chat(chat_template_kwargs={"a": {"b": 1}}).status_code == 400


def test_messages_as_other_servers_gave_them(server: Running) -> None:
    messages = [
        {"role": "user", "content": [
            {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]},
        {"role": "assistant", "content": "Oh", "reasoning_content": "Hm", "reasoning": "Hm"},
        {"role": "user", "content": "Go on"},
    ]  # fmt: skip
    assert server.chat(messages=messages).status_code == 200
    sent = server.pool.seen[0].prompt.messages
    assert [message["content"] for message in sent] == ["Hi", "Oh", "Go on"]


def test_an_object_with_a_schema(server: Running) -> None:
    chosen = {"type": "json_object", "schema": SCHEMA}
    assert server.chat(response_format=chosen).status_code == 200
    constraint = server.pool.seen[0].constraint
    assert constraint.type == "json_schema"
    assert constraint.value == {**SCHEMA, "additionalProperties": False}


def test_objects_may_be_left_open() -> None:
    pool = FakePool()
    with running(settings(open_objects=True), pool) as server:
        assert server.chat(guided_json=SCHEMA).status_code == 200
    assert pool.seen[0].constraint.value == SCHEMA


def test_unknown_fields_are_ignored_where_the_server_is_told_so(server: Running) -> None:
    assert server.chat(temprature=0).json()["error"]["code"] == "unknown_field"
    pool = FakePool()
    with running(settings(ignore_unknown=True), pool) as lenient:
        assert lenient.chat(temprature=0, new_field={"a": 1}).status_code == 200
        assert lenient.chat(chat_template="x").status_code == 400
        assert lenient.chat(temperature="x").status_code == 400
    assert pool.seen[0].sampling == {"temperature": 1.0}


def test_unsupported_fields_may_be_null(server: Running) -> None:
    assert server.chat(chat_template=None).status_code == 200


def test_heads_of_health(server: Running) -> None:
    answer = server.client.head("/health")
    assert (answer.status_code, answer.content) == (200, b"")
    server.pool.healthy = False
    assert server.client.head("/health").status_code == 503


def test_pages_of_named_origins(server: Running) -> None:
    ours, theirs = {"origin": "https://ours.example"}, {"origin": "https://theirs.example"}
    # These are the headers of OpenAI's client in a browser. Anthropic's client asks for others.
    wanted = ["authorization", "content-type", "x-stainless-os", "x-stainless-retry-count"]
    asked = {"access-control-request-method": "POST",
             "access-control-request-headers": ",".join(wanted)}  # fmt: skip
    path, allowed = "/v1/chat/completions", "access-control-allow-origin"
    assert allowed not in server.client.get("/health", headers=ours).headers
    assert server.client.options(path, headers={**ours, **asked}).status_code == 405
    chosen = settings(origins=("https://ours.example",), keys=("a-long-key",))
    with running(chosen, FakePool()) as open_:
        preflight = open_.client.options(path, headers={**ours, **asked, "authorization": ""})
        assert preflight.status_code == 200
        assert preflight.headers[allowed] == "https://ours.example"
        assert {*wanted} <= {*preflight.headers["access-control-allow-headers"].split(",")}
        assert "access-control-allow-credentials" not in preflight.headers
        assert allowed not in open_.client.options(path, headers={**theirs, **asked}).headers
        assert open_.client.get("/health", headers=ours).headers[allowed] == ours["origin"]
        refused = open_.client.get("/health", headers={**ours, "authorization": ""})
        assert (refused.status_code, refused.headers[allowed]) == (401, ours["origin"])


def test_an_origin_is_checked() -> None:
    for origin in ("example.org", "https://a/b", "null"):
        with pytest.raises(ValueError, match="origin"):
            settings(origins=(origin,))


SETS = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


def schema_format(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, **more}}


def function(name: str, parameters: Any, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": parameters, **more}}


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_schema_cannot_say_is_named(server: Running, stream: bool) -> None:
    answer = server.chat(response_format=schema_format(SETS), stream=stream)
    assert answer.headers["x-paradecode-ignored"] == "properties/a/uniqueItems"
    constraint = server.pool.seen[-1].constraint
    assert constraint.value["properties"] == {"a": {"type": "array"}}
    assert constraint.value["additionalProperties"] is False
    tools = [function("f", SCHEMA), function("g", {"not": {"a\n\u00e9": 1}, "if": SCHEMA})]
    forced = server.chat(tools=tools, tool_choice="required", stream=stream)
    assert forced.headers["x-paradecode-ignored"] == "tools/1/not, tools/1/if"
    assert "x-paradecode-ignored" not in server.chat(tools=tools, stream=stream).headers
    many = {"properties": {f"\u00e9{i}" * 99: {"not": {}} for i in range(99)}}
    assert len(server.complete(guided_json=many).headers["x-paradecode-ignored"]) < 12_000


def test_a_strict_schema_is_enforced_or_refused(server: Running) -> None:
    refused = server.chat(response_format=schema_format(SETS, strict=True))
    assert (refused.status_code, refused.json()["error"]["param"]) == (
        400, "response_format.json_schema.schema",
    )  # fmt: skip
    assert "properties/a/uniqueItems" in refused.json()["error"]["message"]
    tools = [function("f", SCHEMA, strict=True), function("g", SETS, strict=True)]
    refused = server.chat(tools=tools, tool_choice="required")
    assert refused.json()["error"]["param"] == "tools[1].function.parameters"
    assert server.chat(response_format=schema_format(SCHEMA, strict=True)).status_code == 200


def test_max_tokens_is_cut_to_the_context(server: Running) -> None:
    assert server.chat(max_tokens=32_000).status_code == 200
    assert server.pool.seen[-1].sampling["max_tokens"] == 512


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [("/v1/chat/completions", {"messages": USER}, "messages"),
     ("/v1/completions", {"prompt": "a"}, "prompt"), ("/v1/responses", {"input": "a"}, "input"),
     ("/v1/messages", {"messages": USER, "max_tokens": 5}, "messages")],
)  # fmt: skip
def test_errors_name_the_clients_own_field(
    server: Running, path: str, body: dict[str, Any], param: str
) -> None:
    code = "context_length_exceeded"
    said = str(TooLong("600 tokens", 512))
    server.pool.failure = Failure(id="", status=400, message=said, param="prompt", code=code)
    error = server.post(path, body).json()["error"]
    assert (error["param"], error["code"]) == (param, code)
    assert "prompt is too long: 600 tokens > 512 maximum" in error["message"]
    assert "maximum context length is 512 tokens" in error["message"]


def test_errors_of_a_constraint_name_its_field(server: Running) -> None:
    server.pool.failure = Failure(
        id="", status=400, message="constraint.value: 'x' is not usable", param="constraint.value"
    )
    for body, param in (
        ({"guided_regex": "x"}, "guided_regex"),
        ({"response_format": schema_format({})}, "response_format.json_schema.schema"),
        ({"tools": [function("f", SCHEMA)], "tool_choice": "required"}, "tools"),
    ):
        error = server.chat(**body).json()["error"]
        assert error["param"] == param
        assert error["message"].startswith(f"{param}: ")


CHAT, TEXT, RESPONSE, MESSAGE = (
    f"/v1/{name}" for name in ("chat/completions", "completions", "responses", "messages")
)
BOUNDS = {
    **{(path, "temperature"): (0, 2) for path in (CHAT, TEXT, RESPONSE)},
    **{(path, "top_p"): (0, 1) for path in (CHAT, TEXT, RESPONSE, MESSAGE)},
    **{(path, f"{name}_penalty"): (-2, 2)
       for path in (CHAT, TEXT) for name in ("frequency", "presence")},
    **{(path, "n"): (1, 128) for path in (CHAT, TEXT)},
    **{(path, "seed"): (-(1 << 63), (1 << 64) - 1) for path in (CHAT, TEXT)},
    **{(path, "min_p"): (0, 1) for path in (CHAT, TEXT)},
    (CHAT, "top_logprobs"): (0, 20), (TEXT, "logprobs"): (0, 5),
    (CHAT, "max_completion_tokens"): (1, 1 << 20), (CHAT, "max_tokens"): (-1, 1 << 20),
    (TEXT, "max_tokens"): (0, 1 << 20), (RESPONSE, "max_output_tokens"): (1, 1 << 20),
    (MESSAGE, "max_tokens"): (1, 1 << 20), (MESSAGE, "temperature"): (0, 1),
    (MESSAGE, "top_k"): (0, (1 << 31) - 1), (CHAT, "top_k"): (-1, (1 << 31) - 1),
    (TEXT, "best_of"): (1, 20), (CHAT, "repetition_penalty"): (0.01, 2),
}  # fmt: skip
"""Route and field -> the least and the greatest value that its API's documentation allows."""
LOOSER = {"logprobs", "repetition_penalty", "best_of"}
"""Fields that may go beyond the documented values here. So may a temperature of messages."""


@pytest.fixture(scope="module")
def wide_open() -> Iterator[Running]:
    with running(settings(outputs=128, names=("caller",)), FakePool()) as server:
        yield server


@pytest.mark.parametrize(("path", "name"), BOUNDS)
def test_numbers_within_an_apis_documented_bounds(wide_open: Running, path: str, name: str) -> None:
    needed = {"logprobs": True} if name == "top_logprobs" else {}
    least = {"max_tokens": 8} if path == MESSAGE else {}
    said = {"prompt": "a", "input": "a", "messages": USER}
    own = {CHAT: "messages", TEXT: "prompt", RESPONSE: "input", MESSAGE: "messages"}[path]
    low, high = BOUNDS[path, name]

    def status(value: Any) -> int:
        body = {own: said[own], **least, **needed, name: value}
        return wide_open.post(path, body).status_code

    assert [status(low), status(high)] == [200, 200]
    if name not in LOOSER and (path, name) != (MESSAGE, "temperature"):
        beyond = [low - 2 if name in ("max_tokens", "top_k") else low - 1]
        assert [status(value) for value in [*beyond, high + 1]] == [400, 400]
    assert [status(wrong) for wrong in ("1", True, [1], {})] == [400] * 4
