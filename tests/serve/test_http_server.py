"""The whole server, with real workers, gives over HTTP what the library gives."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from http_server import Running, events, running

from paradecode import LLM
from paradecode.serve.keys import plain_keys
from paradecode.serve.pool import Served
from paradecode.serve.settings import ServerSettings
from paradecode.serve.worker.settings import WorkerSettings
from tiny_folder import write_folder

openai = pytest.importorskip("openai")

KEY = "a-key-for-this-test"
PROMPTS = ["abcabcabc", "one,two,one,two,", "x" * 40, "(a)(b)(a)(b)"]
METHODS = [
    "none", "prompt-lookup", "copyspec", "suffix", "token-recycling",
    {"method": "prompt-lookup", "num_speculative_tokens": 3}, "prompt-lookup+token-recycling",
]  # fmt: skip
CHAT = [{"role": "user", "content": "Name three uses of copper."}]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    root: Path = tmp_path_factory.mktemp("models")
    return str(write_folder(root / "llama", "llama")), str(write_folder(root / "sdar", "sdar"))


@pytest.fixture(scope="module")
def server(folders: tuple[str, str]) -> Iterator[Running]:
    models = (
        Served("smol", WorkerSettings()),
        Served("tiny", WorkerSettings(model=folders[0])),
        Served("canvas", WorkerSettings(model=folders[1])),
    )
    settings = ServerSettings(models=models, port=0, keys=plain_keys([KEY]), log_requests=False)
    with running(settings) as found:
        yield found


@pytest.fixture(scope="module")
def client(server: Running) -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0)


@pytest.fixture(scope="module")
def offline(folders: tuple[str, str]) -> Iterator[LLM]:
    with LLM(folders[0], decoder=None) as llm:
        yield llm


def streamed_tokens(server: Running, **body: Any) -> list[int]:
    response = server.post("/v1/completions", {"stream": True, "include_metrics": True, **body})
    assert response.status_code == 200, response.text
    data = [json.loads(entry) for entry in events(response)[:-1]]
    return [token for entry in data for token in entry.get("paradecode", {}).get("tokens", ())]


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0}, {"temperature": 1.0, "seed": 7, "top_p": 0.95},
     {"temperature": 0.8, "seed": 1, "top_k": 8, "repetition_penalty": 1.2, "min_tokens": 9}],
)  # fmt: skip
def test_every_exact_method_equals_the_library(
    server: Running, offline: LLM, sampling: dict[str, Any]
) -> None:
    """All methods and prompts at the same time give the results of the library."""
    settings = {**sampling, "max_tokens": 40}
    wanted = {prompt: offline.complete(prompt, **settings).token_ids for prompt in PROMPTS}
    cases = [(prompt, method) for prompt in PROMPTS for method in METHODS]

    def ask(case: tuple[str, Any]) -> list[int]:
        return streamed_tokens(
            server, model="tiny", prompt=case[0], speculative=case[1], **settings
        )

    with ThreadPoolExecutor(16) as threads:
        for case, got in zip(cases, threads.map(ask, cases)):
            assert got == wanted[case[0]], case


def test_the_default_model_equals_the_library(server: Running) -> None:
    with LLM(decoder=None) as llm:
        wanted = llm.chat(CHAT, max_tokens=24)
    answer = server.chat(model="smol", messages=CHAT, max_tokens=24, temperature=0)
    assert answer.json()["choices"][0]["message"]["content"] == wanted.text


def test_several_outputs_equal_the_librarys(server: Running, offline: LLM) -> None:
    settings: dict[str, Any] = {"n": 3, "seed": 5, "temperature": 1.0, "max_tokens": 12}
    wanted = offline.complete(PROMPTS[0], **settings)
    answer = server.complete(model="tiny", prompt=PROMPTS[0], **settings).json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert texts == [out.text for out in (wanted, *wanted.alternatives)]


def test_chat_with_the_official_client(client: Any) -> None:
    answer = client.chat.completions.create(
        model="smol", messages=CHAT, max_completion_tokens=16, temperature=0, logprobs=True,
        top_logprobs=2, user="someone", store=False,
    )  # fmt: skip
    (choice,) = answer.choices
    assert choice.finish_reason == "length"
    assert answer.usage.completion_tokens == 16 == len(choice.logprobs.content)
    assert "".join(entry.token for entry in choice.logprobs.content) == choice.message.content
    stream = client.chat.completions.create(
        model="smol", messages=CHAT, max_completion_tokens=16, temperature=0, stream=True,
        stream_options={"include_usage": True}, extra_body={"speculative": "none"},
    )  # fmt: skip
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == choice.message.content
    assert chunks[-1].usage.completion_tokens == 16


def test_predicted_outputs_with_the_official_client(client: Any) -> None:
    body = {"model": "smol", "messages": CHAT, "max_tokens": 32, "temperature": 0}
    text = client.chat.completions.create(**body).choices[0].message.content
    again = client.chat.completions.create(
        **body,
        prediction={"type": "content", "content": text},
        extra_body={"speculative": "predicted-output(budget=fixed)"},  # Whatever time costs here.
    )
    assert again.choices[0].message.content == text
    details = again.usage.completion_tokens_details
    assert details.accepted_prediction_tokens > 20
    assert details.rejected_prediction_tokens < 10


def test_completions_and_responses_with_the_official_client(client: Any) -> None:
    found = client.completions.create(model="tiny", prompt=["abc", "b"], max_tokens=5)
    assert [choice.index for choice in found.choices] == [0, 1]
    answer = client.responses.create(
        model="smol", input="Hi", instructions="Be brief.", max_output_tokens=8, temperature=0
    )
    assert answer.status == "incomplete"
    assert answer.output_text
    stream = client.responses.create(
        model="smol", input="Hi", instructions="Be brief.", max_output_tokens=8, temperature=0,
        stream=True,
    )  # fmt: skip
    told = list(stream)
    assert "".join(e.delta for e in told if e.type == "response.output_text.delta") == (
        answer.output_text
    )
    assert told[-1].response.usage.output_tokens == 8


def test_the_clients_own_errors(server: Running, client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="smol", messages=CHAT, temperature=3)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="none", messages=CHAT)
    assert refused.value.code == "model_not_found"
    stranger = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong-key", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    assert [model.id for model in client.models.list()] == ["smol", "tiny", "canvas"]


@pytest.mark.parametrize(
    ("body", "param"),
    [({"speculative": "no-such"}, "speculative"), ({"speculative": "threshold"}, "speculative"),
     ({"speculative": {"method": "retrieval", "path": "/etc/passwd"}}, None),
     ({"speculative": "draft-model(model='/etc/passwd')"}, None),
     ({"speculative": {"method": "prompt-lookup", "num_speculative_tokens": 10**9}}, None),
     ({"prompt": [96]}, "prompt"), ({"logit_bias": {"96": 1}}, "logit_bias"),
     ({"min_tokens": 9, "max_tokens": 3}, "min_tokens"), ({"prompt": "a" * 5000}, "prompt")],
)  # fmt: skip
def test_what_only_the_worker_can_refuse(
    server: Running, body: dict[str, Any], param: str | None
) -> None:
    for stream in (False, True):
        response = server.complete(model="tiny", stream=stream, **body)
        assert response.status_code == 400, response.text
        error = response.json()["error"]
        assert param is None or error["param"] == param
        assert "/tmp" not in error["message"]  # Where the server's own files are.


def test_diffusion_settings_and_canvas(server: Running, folders: tuple[str, str]) -> None:
    with LLM(folders[1]) as llm:
        wanted = llm.complete("abcabc", decoder="static", max_tokens=16)
    body = {"model": "canvas", "prompt": "abcabc", "temperature": 0, "max_tokens": 16}
    for method in ({"speculative": "none"}, {"diffusion": {"method": "static"}}):
        assert streamed_tokens(server, **body, **method) == wanted.token_ids
    response = server.complete(
        **{**body, "diffusion": {"block_length": 8}, "provisional": True, "stream": True}
    )
    shown = [json.loads(entry).get("paradecode", {}) for entry in events(response)[:-1]]
    assert any(None in entry.get("canvas", ()) for entry in shown)


def test_tokens_there_and_back(server: Running) -> None:
    found = server.post("/tokenize", {"model": "tiny", "prompt": "abc", "return_token_strs": True})
    assert found.json()["token_strs"] == ["a", "b", "c"]
    tokens = found.json()["tokens"]
    text = server.post("/detokenize", {"model": "tiny", "tokens": tokens}).json()
    assert text == {"prompt": "abc", "content": "abc"}
    chat = server.post("/tokenize", {"model": "smol", "messages": CHAT}).json()
    assert chat["count"] > 10
    asked = {"model": "smol", "messages": CHAT}
    prompt = server.post("/apply-template", asked).json()["prompt"]
    assert prompt.startswith("<|im_start|>")
    assert prompt.endswith("<|im_start|>assistant\n")
    assert server.post("/tokenize", {"model": "smol", "prompt": prompt}).json()["count"] >= 10


def test_metrics_count(server: Running) -> None:
    server.complete(model="tiny", max_tokens=4)
    page = server.client.get("/metrics").text
    (line,) = [row for row in page.splitlines() if row.startswith(
        'paradecode:http_responses_total{route="/v1/completions",status="200"}')]  # fmt: skip
    assert float(line.rpartition(" ")[2]) > 0
    assert 'paradecode:spec_decode_num_drafts_total{method="prompt-lookup",model="tiny"}' in page


@pytest.mark.skipif(find_spec("llguidance") is None, reason="needs llguidance")
def test_a_forced_call_is_valid(server: Running) -> None:
    tool = {"type": "function", "function": {"name": "weather", "parameters": {
        "type": "object", "additionalProperties": False, "required": ["city", "days"],
        "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"$ref": "#/$defs/d"}},
        "$defs": {"d": {"type": "integer", "minimum": 1, "maximum": 9}}}}}  # fmt: skip
    body = {"model": "smol", "messages": CHAT, "tools": [tool], "tool_choice": "required",
            "max_tokens": 64, "temperature": 0}  # fmt: skip
    choice = server.post("/v1/chat/completions", body).json()["choices"][0]
    (call,) = choice["message"]["tool_calls"]
    arguments = json.loads(call["function"]["arguments"])
    assert arguments["city"] in ("Oslo", "Rome")
    assert 1 <= arguments["days"] <= 9
    assert choice["finish_reason"] == "tool_calls"
    lines = events(server.post("/v1/chat/completions", {**body, "stream": True}))[:-1]
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
    parts = [delta["tool_calls"][0]["function"] for delta in deltas if "tool_calls" in delta]
    assert "".join(part.get("arguments", "") for part in parts) == call["function"]["arguments"]


@pytest.mark.skipif(find_spec("llguidance") is None, reason="needs llguidance")
@pytest.mark.parametrize(
    "constraint",
    [{"guided_regex": "("}, {"guided_regex": "a{1,99999999}"}, {"guided_grammar": "start: x"},
     {"guided_grammar": "nonsense"}, {"guided_json": {"type": "no-such-type"}},
     {"guided_json": {"$ref": "#/$defs/nowhere"}}, {"guided_json": {"minItems": -1, "items": 5}},
     {"guided_json": {"$ref": "http://127.0.0.1/schema.json"}},
     {"guided_json": {"allOf": [  # The library would be busy with it for minutes.
         {"type": "string", "pattern": f".*{chr(97 + i % 26)}.{{{i + 5}}}"} for i in range(40)]}}],
)  # fmt: skip
def test_hostile_constraints_cost_only_their_request(
    server: Running, constraint: dict[str, Any]
) -> None:
    response = server.complete(model="tiny", **constraint)
    assert response.status_code in (200, 400), response.text  # Some have a meaning to the library.
    assert server.complete(model="tiny", max_tokens=2).status_code == 200


@pytest.mark.wide
def test_a_client_that_leaves_frees_its_pages(server: Running) -> None:
    # The request takes seconds, because the tiny model would be done before this process looks.
    body = {"model": "smol", "prompt": "abc", "max_tokens": 8000, "ignore_eos": True,
            "speculative": "none", "stream": True}  # fmt: skip

    def held() -> tuple[int, int] | None:
        asked = asyncio.run_coroutine_threadsafe(server.pool.stats(), server.loop)
        (stats,) = asked.result(60)["smol"]  # None from a worker that is too busy to answer.
        return None if stats is None else (stats.running, stats.held_pages)

    def seen_at_work() -> bool:
        with server.client.stream("POST", "/v1/completions", json=body) as response:
            return any(held() not in (None, (0, 0)) for _ in response.iter_raw())

    end = time.monotonic() + 120
    while not seen_at_work():  # All of the stream passed while this process was kept from looking.
        assert time.monotonic() < end
    while held() != (0, 0):
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.wide
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl(server: Running) -> None:
    body = json.dumps({"model": "tiny", "prompt": "abc", "max_tokens": 4, "stream": True})
    done = subprocess.run(
        ["curl", "--silent", "--no-buffer", f"{server.url}/v1/completions", "-d", body,
         "-H", "Content-Type: application/json", "-H", f"Authorization: Bearer {KEY}"],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert done.stdout.endswith("data: [DONE]\n\n")
