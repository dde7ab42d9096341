"""Real agents read and edit a file over the server, while a script says what the model writes.

``make clients`` installs the programs and prints the table of what each one did. What a small model
would not manage is the script's. Tokens, template, tools, parsing and streams are the server's
(see ``clients/scripted_worker.py``).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from http_server import Running, events, running

from paradecode.serve import spare
from paradecode.serve.pool import Served
from paradecode.serve.settings import ServerSettings
from paradecode.serve.worker.settings import WorkerSettings
from patience import PATIENCE, until
from repository import ROOT

CLIENTS = ROOT / "tests/serve/clients"
INSTALLED = Path(os.environ.get("PARADECODE_CLIENTS", ROOT / "build/clients"))
FILE, BEFORE, AFTER = "hello.py", 'print("Hello, wrold")', 'print("Hello, \\"wörld\\" 🌍")'
TASK = "Mend the greeting in hello.py."
FINAL = "The greeting is mended: wörld."
SCHEMA = {
    "type": "object", "properties": {"done": {"type": "boolean"}}, "required": ["done"],
    "additionalProperties": False,
}  # fmt: skip
DONE = '{"done":true}'

slow = pytest.mark.slow


def call(name: str, **arguments: Any) -> str:
    said = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{said}\n</tool_call>"


def thought(text: str) -> str:
    return f"<think>\nHm, {text}\n</think>\n\nI see.\n"


@contextmanager
def scripted(folder: Path, *scenes: dict[str, Any]) -> Iterator[Running]:
    """Run a server whose worker follows a script."""
    script = folder / "script.json"
    script.write_text(json.dumps(scenes), "utf-8")
    worker = WorkerSettings(threads=1, chat_template=str(CLIENTS / "tools.jinja"))
    with pytest.MonkeyPatch.context() as patch:
        command = (sys.executable, str(CLIENTS / "scripted_worker.py"))
        patch.setattr(spare, "COMMAND", command)
        patch.setenv("PARADECODE_SCRIPT", str(script))
        aliases = (("claude-*", "qwen"), ("gpt-*", "qwen"))
        chosen = ServerSettings(models=(Served("qwen", worker),), port=0, aliases=aliases)
        with running(chosen) as server:
            yield server


@dataclass(frozen=True)
class Agent:
    """A program that edits a file.

    Attributes:
        package: its package, on npm or PyPI.
        command: its command. In all texts, ``URL`` and ``HOME`` are replaced.
        says: makes the script's answers from the path of the file: pairs of a pattern of what has
            arrived since the last answer, and the next answer.
        tool: a text of its prompts with tools. Others are side requests.
        files: files in its home.
        environment: its environment.
        before: a command that comes first.
        final: its last words.
    """

    package: str
    command: tuple[str, ...]
    says: Callable[[str], list[tuple[str, str]]]
    tool: str = ""
    files: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    final: str = FINAL


def claude(path: str) -> list[tuple[str, str]]:
    edit = {"file_path": path, "old_string": BEFORE, "new_string": AFTER}
    both = [call("Read", file_path=path), call("Read", file_path=f"{path}.md")]
    return [
        ("has been updated", FINAL),
        # The results are in the order of the calls, whichever read has ended first.
        (r"1\s+print[\s\S]*A note", thought("edit") + call("Edit", **edit)),
        (TASK, thought("read") + "\n".join(both)),
    ]


def codex(path: str) -> list[tuple[str, str]]:
    patch = (
        f"*** Begin Patch\n*** Update File: {Path(path).name}\n"
        f"@@\n-{BEFORE}\n+{AFTER}\n*** End Patch"
    )
    return [
        ("Success", FINAL),
        (
            "wrold",
            thought("patch") + call("exec_command", cmd=f"apply_patch <<'EOF'\n{patch}\nEOF"),
        ),
        (TASK, thought("read") + call("exec_command", cmd=f"cat {Path(path).name}")),
    ]


def codex_in_schema(path: str) -> list[tuple[str, str]]:
    """Return Codex's answers in the form that tools beside a schema leave: JSON alone."""
    answers = [(pattern, re.sub(r"(?s).*<tool_call>|</tool_call>", "", answer).strip())
               for pattern, answer in codex(path)]  # fmt: skip
    compact = [(pattern, json.dumps(json.loads(answer), ensure_ascii=False, separators=(",", ":")))
               for pattern, answer in answers[1:]]  # fmt: skip
    return [("Success", DONE), *compact]


def cline(path: str) -> list[tuple[str, str]]:
    return [
        ("A note", call("editor", path=path, old_text=BEFORE, new_text=AFTER)),
        ("success", FINAL),
        (TASK, call("read_files", files=[{"path": path}, {"path": f"{path}.md"}])),
    ]


def continued(path: str) -> list[tuple[str, str]]:
    edits = [{"old_string": BEFORE, "new_string": AFTER}]
    return [
        ("[Ss]uccess", FINAL),
        ("wrold", call("MultiEdit", file_path=path, edits=edits)),
        (TASK, call("Read", filepath=path)),
    ]


def aider(path: str) -> list[tuple[str, str]]:
    return [(TASK, f"{FINAL}\n\n{Path(path).name}\n```python\n{AFTER}\n```\n")]


PROVIDER = """
model = "qwen"
model_provider = "here"
[model_providers.here]
name = "here"
base_url = "URL/v1"
wire_api = "responses"
"""
CONTINUE = """
name: here
version: 1.0.0
schema: v1
models:
  - {name: qwen, provider: openai, model: qwen, apiBase: "URL/v1", apiKey: none}
"""
EXEC = ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
AGENTS = {
    "Claude Code": Agent(
        "@anthropic-ai/claude-code",
        ("claude", "-p", TASK, "--model", "qwen", "--output-format", "json",
         "--allowedTools", "Read,Edit"),
        claude,
        '"name": "Edit"',
        environment={
            "ANTHROPIC_BASE_URL": "URL", "ANTHROPIC_AUTH_TOKEN": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        },
    ),
    "Codex CLI": Agent(
        "@openai/codex", (*EXEC, TASK), codex, '"name": "exec_command"',
        {".codex/config.toml": PROVIDER},
    ),
    "Codex CLI with a schema": Agent(
        "@openai/codex", (*EXEC, "--output-schema", "HOME/schema.json", TASK), codex_in_schema,
        '"name": "exec_command"',
        {".codex/config.toml": PROVIDER, "schema.json": json.dumps(SCHEMA)},
        final=DONE,
    ),
    "Cline": Agent(
        "cline", ("cline", "--json", "-P", "openai", "-m", "qwen", TASK), cline, '"name": "editor"',
        before=("cline", "auth", "openai", "-k", "none", "-m", "qwen", "-b", "URL/v1"),
    ),
    "Continue": Agent(
        "@continuedev/cli", ("cn", "-p", "--auto", "--config", "HOME/config.yaml", TASK), continued,
        '"name": "MultiEdit"', {"config.yaml": CONTINUE},
    ),
    "aider": Agent(
        "aider-chat",
        ("aider", "--model", "openai/qwen", "--no-git", "--yes-always", "--no-check-update",
         "--analytics-disable", "--message", TASK, FILE),
        aider,
        environment={"OPENAI_API_BASE": "URL/v1", "OPENAI_API_KEY": "none"},
    ),
}  # fmt: skip


def version(package: str) -> str:
    """Return the version of an installed package; skip the test without one."""
    about = INSTALLED / "npm/node_modules" / package / "package.json"
    if about.exists():
        return str(json.loads(about.read_text("utf-8"))["version"])
    name = package.replace("-", "_")
    for place in ("", "aider", "webui"):
        for found in (INSTALLED / place).glob(f"lib/*/site-packages/{name}-*.dist-info"):
            return found.stem.rpartition("-")[2]
    pytest.skip(f"needs {package}: make clients")


def log_of(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the server's lines about requests."""
    lines = [json.loads(one) for one in capsys.readouterr().err.splitlines() if one[:1] == "{"]
    return [line for line in lines if line["event"] == "request"]


@pytest.fixture(scope="module")
def table() -> Iterator[list[str]]:
    """Rows of a table of the clients that have passed, which is printed at the end."""
    rows = ["", "| client | version | requests | refused | ignored |", "|---|---|---|---|---|"]
    yield rows
    print(*rows, sep="\n")


def row(name: str, version: str, lines: list[dict[str, Any]]) -> str:
    """Return a row of the table. No request may be refused, and the page names the version."""
    page = (ROOT / "docs/agents.md").read_text("utf-8").splitlines()
    (told,) = (line for line in page if line.startswith(f"| {name.partition(' with')[0]} |"))
    assert version in told.rpartition(" | ")[2]
    refused = [line for line in lines if line["status"] >= 400]
    assert lines
    assert not refused
    ignored = sorted({one for line in lines for one in line.get("without_effect", ())})
    return f"| {name} | {version} | {len(lines)} | {len(refused)} | {', '.join(ignored)} |"


@contextmanager
def home_of(place: Path, url: str, given: dict[str, str]) -> Iterator[dict[str, str]]:
    """Make an environment with a home of its own; what still runs there at the end is killed."""
    folders = ("npm/node_modules/.bin", "bin", "aider/bin", "webui/bin")
    path = ":".join([*(str(INSTALLED / one) for one in folders), os.environ["PATH"]])
    place.mkdir(exist_ok=True)
    own = {name: text.replace("URL", url) for name, text in given.items()}
    try:
        yield {"PATH": path, "HOME": str(place), **own}
    finally:
        for found in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if f"HOME={place}".encode() in found.read_bytes().split(b"\0"):
                    os.kill(int(found.parent.name), signal.SIGKILL)


WEATHER = "How is the weather in Ulm?"
LOOK, REPORT = {"city": "Ulm"}, {"city": "Ulm", "degrees": 21}


def compact(**value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def test_a_scripted_conversation_over_each_api(tmp_path: Path) -> None:
    """The worker of the script is in place, and its calls come back as each API shows them."""
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    function = {"name": "weather", "parameters": parameters}
    says = [(r"<tool_response>\n21", FINAL), ("", thought("look.") + call("weather", **LOOK))]
    said = {"task": WEATHER, "tool": '"name": "weather"', "says": says}
    with scripted(tmp_path, said) as server:
        asked: list[Any] = [{"role": "user", "content": WEATHER}]
        chat = {"tools": [{"type": "function", "function": function}]}
        message = server.chat(messages=asked, **chat).json()["choices"][0]["message"]
        assert message["reasoning_content"] == "Hm, look.\n"
        (made,) = message["tool_calls"]
        assert json.loads(made["function"]["arguments"]) == LOOK
        asked += [message, {"role": "tool", "tool_call_id": made["id"], "content": "21"}]
        parts = [json.loads(one) for one in events(server.chat(messages=asked, stream=True, **chat))
                 if one != "[DONE]"]  # fmt: skip
        assert "".join(p["choices"][0]["delta"].get("content", "") for p in parts) == FINAL
        tools: dict[str, Any] = {"tools": [{"type": "function", **function}]}
        output = server.post("/v1/responses", {"input": WEATHER, **tools}).json()["output"]
        assert json.loads(output[-1]["arguments"]) == LOOK
        result = {"type": "function_call_output", "call_id": output[-1]["call_id"], "output": "21"}
        items = [{"role": "user", "content": WEATHER}, *output, result]
        last = server.post("/v1/responses", {"input": items, **tools}).json()["output"][-1]
        assert last["content"][0]["text"] == FINAL
        offered = [{"name": "weather", "input_schema": parameters}]
        tools = {"tools": offered, "max_tokens": 99}
        asked = asked[:1]
        blocks = server.post("/v1/messages", {"messages": asked, **tools}).json()["content"]
        assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
        shown = {"type": "tool_result", "tool_use_id": blocks[-1]["id"], "content": "21"}
        asked += [{"role": "assistant", "content": blocks}, {"role": "user", "content": [shown]}]
        last = server.post("/v1/messages", {"messages": asked, **tools}).json()["content"]
        assert last == [{"type": "text", "text": FINAL}]


@slow
@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_edits_a_file(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], table: list[str]
) -> None:
    agent, home, work = AGENTS[name], tmp_path / "home", tmp_path / "work"
    installed = version(agent.package)
    work.mkdir()
    (work / FILE).write_text(BEFORE + "\n", "utf-8")
    (work / f"{FILE}.md").write_text("A note.\n", "utf-8")
    scene = {"task": TASK, "tool": agent.tool, "says": agent.says(str(work / FILE))}
    with (
        scripted(tmp_path, scene) as server,
        home_of(home, server.url, agent.environment) as environment,
    ):

        def filled(text: str) -> str:
            return text.replace("URL", server.url).replace("HOME", str(home))

        for path, text in agent.files.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_text(filled(text), "utf-8")
        for command in filter(None, (agent.before, agent.command)):
            done = subprocess.run(
                [*map(filled, command)], cwd=work, env=environment, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=PATIENCE, check=False,
            )  # fmt: skip
            said = done.stdout + done.stderr
            assert done.returncode == 0, said[-4000:]
    assert (work / FILE).read_text("utf-8").strip() == AFTER, said[-4000:]
    assert agent.final in said or json.dumps(agent.final)[1:-1] in said, said[-4000:]
    table.append(row(name, installed, log_of(capsys)))


@slow
def test_langchains_agents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], table: list[str]
) -> None:
    installed = version("langchain")
    look = compact(name="weather", arguments=LOOK)
    scenes = [
        {"task": WEATHER, "tool": f'"name": "{tool}"', "says": [("21 degrees", said), ("", look)]}
        for tool, said in (
            ("Report", compact(name="Report", arguments=REPORT)),
            ("weather", compact(**REPORT)),
        )
    ]
    with scripted(tmp_path, *scenes) as server:
        program = [INSTALLED / "bin/python", CLIENTS / "asking.py", "langchain_agents"]
        done = subprocess.run(
            [*map(str, program), server.url, WEATHER], capture_output=True, text=True, check=True
        )
    found = json.loads(done.stdout.splitlines()[-1])
    for api in ("chat", "responses", "messages"):
        assert found[api] == ["", "Ulm: 21 degrees", compact(**REPORT)]
        assert found[f"{api}, streamed"] == compact(**REPORT)
        assert found[f"{api}, tool"] == found[f"{api}, schema"] == REPORT
    table.append(row("LangChain", installed, log_of(capsys)))


@slow
def test_open_webui(tmp_path: Path, capsys: pytest.CaptureFixture[str], table: list[str]) -> None:
    """Its own server lists the model, and passes a chat on as its page sends it."""
    installed = version("open-webui")
    given = {
        "OPENAI_API_BASE_URL": "URL/v1", "OPENAI_API_KEY": "none", "WEBUI_AUTH": "False",
        "WEBUI_SECRET_KEY": "none", "DATA_DIR": str(tmp_path / "data"), "OFFLINE_MODE": "True",
        "ENABLE_OLLAMA_API": "False", "RAG_EMBEDDING_ENGINE": "openai",
    }  # fmt: skip
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with (
        scripted(tmp_path, {"task": WEATHER, "tool": "", "says": [("", FINAL)]}) as server,
        home_of(tmp_path / "home", server.url, given) as environment,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client,
    ):
        command = ["open-webui", "serve", "--host", "127.0.0.1", "--port", str(port)]
        program = shutil.which(command[0], path=environment["PATH"])
        with (tmp_path / "webui.log").open("w") as log:
            subprocess.Popen([str(program), *command[1:]], env=environment, stdout=log, stderr=log)

        def answers() -> bool:
            with suppress(httpx.TransportError):
                return client.get("/health").status_code == 200
            return False

        until(answers)
        user = client.post("/api/v1/auths/signin", json={"email": "", "password": ""}).json()
        client.headers["authorization"] = f"Bearer {user['token']}"
        assert [model["id"] for model in client.get("/api/models").json()["data"]] == ["qwen"]
        asked = {"model": "qwen", "messages": [{"role": "user", "content": WEATHER}]}
        whole = client.post("/api/chat/completions", json={**asked, "stream": False}).json()
        parts = events(client.post("/api/chat/completions", json={**asked, "stream": True}))
    assert whole["choices"][0]["message"]["content"] == FINAL
    pieces = [json.loads(part)["choices"][0]["delta"] for part in parts if part != "[DONE]"]
    assert "".join(piece.get("content") or "" for piece in pieces) == FINAL
    table.append(row("Open WebUI", installed, log_of(capsys)))
