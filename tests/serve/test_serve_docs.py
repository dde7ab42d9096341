"""The examples in docs/serve.md work: they are run against a server."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator

import pytest

pytest.importorskip("uvicorn")

from http_server import Running, running

from paradecode.models.catalogue import DEFAULT
from paradecode.serve.pool import Served
from paradecode.serve.protocol.chat import ChatRequest
from paradecode.serve.protocol.completions import CompletionRequest
from paradecode.serve.protocol.messages import MessagesRequest
from paradecode.serve.protocol.responses import ResponsesRequest
from paradecode.serve.settings import ServerSettings
from paradecode.serve.worker.settings import WorkerSettings
from repository import ROOT

PAGE = (ROOT / "docs/serve.md").read_text("utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


COMMANDS = [
    command.strip()
    for block in blocks("console")
    for command in re.split(r"^\$ ", block, flags=re.MULTILINE)
    if command.strip()
]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    models = (Served(DEFAULT, WorkerSettings(max_tokens=16)),)
    with running(ServerSettings(models=models, port=0, log_requests=False)) as found:
        yield found


def test_the_commands_are_known() -> None:
    bare = [command.removeprefix(".venv/bin/") for command in COMMANDS]
    assert {command.split()[0] for command in bare} == {"pip", "paradecode", "curl"}
    starts = {command.splitlines()[0] for command in bare if command.startswith("paradecode")}
    assert starts == {"paradecode serve"}


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_curl_command(server: Running) -> None:
    (command,) = [command for command in COMMANDS if command.startswith("curl")]
    words = shlex.split(command.replace("http://127.0.0.1:8000", server.url))
    words[-1] = json.dumps({**json.loads(words[-1]), "max_tokens": 8})
    done = subprocess.run(
        [*words, "--silent", "--fail-with-body"], capture_output=True, text=True, timeout=120,
        check=True,
    )  # fmt: skip
    assert '"role":"assistant"' in done.stdout


def test_the_client_program(server: Running) -> None:
    pytest.importorskip("openai")
    (program,) = blocks("python")
    found: dict[str, object] = {}
    exec(program.replace("http://127.0.0.1:8000", server.url), found)
    assert found["answer"].choices[0].message.content  # type: ignore[attr-defined]


def test_every_field_is_in_the_table() -> None:
    fields = {
        name
        for kind in (ChatRequest, CompletionRequest, ResponsesRequest, MessagesRequest)
        for name in kind.model_fields
    }
    own = {"text", "truncation"}  # Of /v1/responses, with one value each that changes nothing.
    missing = sorted(name for name in fields - own if f"`{name}" not in PAGE)
    assert missing == []
