"""Real client packages work with the server. ``make clients`` installs the packages.

Their pins contradict each other's and this project's, so they have an environment of their own.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_server import USER, Running, running

from paradecode.llm import LLM
from paradecode.serve.errors import ApiError
from paradecode.serve.pool import Served
from paradecode.serve.protocol.base import settle, validated
from paradecode.serve.protocol.messages import MessagesRequest
from paradecode.serve.protocol.responses import ResponsesRequest
from paradecode.serve.settings import ServerSettings
from paradecode.serve.worker.settings import WorkerSettings
from repository import ROOT
from tiny_folder import write_folder
from tools.pages.api_table_page import APIS

PYTHON = Path(os.environ.get("PARADECODE_CLIENTS", ROOT / "build/clients")) / "bin/python"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="needs the packages: make clients"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = write_folder(tmp_path_factory.mktemp("model") / "llama", "llama")
    about = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>"}
    (place / "tokenizer_config.json").write_text(json.dumps(about))
    (place / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message.content }}{% endfor %}"
    )
    return place


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    models = (Served("tiny", WorkerSettings(model=str(folder), max_tokens=64, threads=1)),)
    with running(ServerSettings(models=models, port=0, log_requests=False)) as found:
        yield found


def printed(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [str(PYTHON), str(ROOT / "tests/serve/clients" / program), *arguments],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


def asked(name: str, *arguments: str) -> Any:
    return json.loads(printed("asking.py", name, *arguments).splitlines()[-1])


REASONS = (
    "the models here read", "is not supported; ", "there are no tools to choose",
    "input should be 'text'", "input should be 'none' or 'auto'", "it needs logprobs",
    "nothing in it is a message", "it is required", "give an object with a type",
    "tool_calls belong to an assistant's message", "behind another one",
    "has anything that the model reads", "remove the white space", "no tokens that fill in",
)  # fmt: skip
"""Messages that may refuse a request with a single field, or with a single part."""


def test_every_shape_that_the_packages_allow() -> None:
    """The server accepts each parameter with each type of value, except for known reasons."""
    listed = json.loads((ROOT / "tests/serve/clients/shapes.json").read_text("utf-8"))
    assert json.loads(printed("shapes.py", "names")) == listed
    found = [(place, refusal(api, body)) for api, place, body in shapes()]
    refused = [(place, said) for place, said in found if said is not None]
    assert [one for one in refused if not any(reason in one[1] for reason in REASONS)] == []
    assert len(refused) < 0.1 * len(found)
    assert len(found) > 5000


def shapes() -> list[Any]:
    return [json.loads(line) for line in printed("shapes.py").splitlines()]


def refusal(api: str, body: Any) -> str | None:
    """Return why a request is refused, or None. A user's turns are added around its content."""
    for name in ("messages", "input"):
        if isinstance(body.get(name), list):
            body = {**body, name: [*USER, *body[name], *USER]}
    body = {"input": "Hi", **body} if api == "responses" else body  # The package requires none.
    try:
        made = validated(APIS[api], body)
        settle(made)
        if isinstance(made, (MessagesRequest, ResponsesRequest)):
            made.chat().prompt(True)
    except ApiError as error:
        return error.message
    return None


def test_openai(server: Running, folder: Path) -> None:
    found = asked("openai", server.url)
    assert len(found["parsed"]) <= 2
    assert len(found["called"]) <= 2
    assert found["streamed"] == "response.completed"
    assert found["text"] == "abc"
    with LLM(str(folder), threads=1) as llm:
        (scored,) = llm.score(["abc"])
    assert found["logprobs"] == [None, *(entry.logprob for entry in scored)]
    assert found["length"] == pytest.approx(1, abs=1e-5)


def test_anthropic(server: Running) -> None:
    found = asked("anthropic", server.url)
    assert (found["type"], found["reason"], found["texts"]) == ("text", "tool_use", 1)
    assert found["tokens"] > 0
    assert found["stopped"] == ["stop_sequence", True]
    assert found["counted"]
    assert len(found["city"]) <= 2


def test_ollama(server: Running, folder: Path) -> None:
    found = asked("ollama", server.url)
    assert (found["models"], found["able"]) == (["tiny"], ["completion", "tools"])
    assert found["tokens"] == [8, 8, 8]
    assert found["same"]
    assert found["city"] <= 2
    assert found["refused"].startswith("404 model: there is no such model")
    with LLM(str(folder), threads=1) as llm:
        assert found["text"] == llm.complete("abc", max_tokens=8).text
        assert found["running"] == [llm.config.context_length]


def test_langchain(server: Running) -> None:
    found = asked("langchain", server.url)
    assert found == {"keys": ["city"], "invalid": 0, "size": 64, "chunks": True}


def test_litellm(server: Running) -> None:
    assert asked("litellm", server.url) == {"tokens": 8, "same": True}


def test_instructor(server: Running) -> None:
    found = asked("instructor", server.url)
    assert found == dict.fromkeys(("TOOLS", "JSON_SCHEMA"), "City")


def test_guidellms_load(server: Running, folder: Path) -> None:
    found = asked("guidellm", server.url, str(folder))
    expected = {"done": 6, "failed": 0, "tokens": [8]}
    assert found == dict.fromkeys(("/v1/chat/completions", "/v1/completions"), expected)


def test_lm_eval_scores_as_the_python_front_does(server: Running, folder: Path) -> None:
    found = asked("lm_eval", server.url, str(folder))["scores"]
    assert len(found) == 5
    with LLM(str(folder), threads=1) as llm:
        for context, continuation, total, greedy in found:
            (scored,) = llm.score([context + continuation], top=1)
            own = scored[len(llm.encode(context)) - 1 :]
            assert total == sum(entry.logprob for entry in own)
            assert greedy == all(entry.logprob == entry.top[0][1] for entry in own)
