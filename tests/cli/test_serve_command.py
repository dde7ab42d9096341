"""Tests of `paradecode serve`: its ready line, what it refuses, and how it stops."""

import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import httpx
import pytest

from tiny_folder import write_folder

pytest.importorskip("uvicorn")

from paradecode.cli import app
from paradecode.core.errors import InvalidInput
from patience import PATIENCE

PROGRAM = [sys.executable, "-c", "from paradecode.cli import main; main()", "serve", "--port", "0"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_folder(tmp_path_factory.mktemp("model") / "llama", "llama"))


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    process = subprocess.Popen(
        [*PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        line = process.stdout.readline()
        assert line.startswith("ready: http://127.0.0.1:"), process.communicate()
        yield process, line, line.split()[1].removesuffix("/v1")
    finally:
        process.kill()
        process.communicate()


@pytest.mark.wide
def test_ready_line_and_names(folder: str) -> None:
    own = f"two={folder},decoder=prompt-lookup(max_ngram=3,min_ngram=2)"
    with serving(f"one={folder}", "--model", own, "--decoder", "copyspec") as found:
        process, line, url = found
        assert "serves one (copyspec), two (prompt-lookup(max_ngram=3,min_ngram=2))" in line
        models = httpx.get(f"{url}/v1/models").json()["data"]
        assert [model["id"] for model in models] == ["one", "two"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out) == (0, "")
        assert err.rstrip().endswith("stopped")
        assert "Traceback" not in err


def test_sigterm_finishes_what_was_accepted(folder: str) -> None:
    with serving(f"tiny={folder}", "--speculative-config", '{"method": "ngram"}') as found:
        process, line, url = found
        assert "serves tiny (prompt-lookup" in line
        body = {
            "model": "tiny",
            "prompt": "abc",
            "max_tokens": 800,
            "ignore_eos": True,
            "stream": True,
        }
        started, text = threading.Event(), []

        def ask() -> None:
            with httpx.stream(
                "POST", f"{url}/v1/completions", json=body, timeout=PATIENCE
            ) as response:
                for line in response.iter_lines():
                    text.append(line)
                    if len(text) > 6:
                        started.set()

        reader = threading.Thread(target=ask)
        reader.start()
        assert started.wait(PATIENCE)
        process.send_signal(signal.SIGTERM)
        reader.join(PATIENCE)
        lines = [line.removeprefix("data: ") for line in text if line]
        assert lines[-1] == "[DONE]"
        assert json.loads(lines[-2])["choices"][0]["finish_reason"] == "length"
        assert process.wait(PATIENCE) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


def test_sigterm_finishes_what_waits_for_its_model(folder: str) -> None:
    """The model is loaded although the server stops, as the request was accepted before."""
    above = str(Path(folder).parent)
    with serving("--models-dir", above, "--memory-limit", "1GiB") as (process, line, url):
        assert "serves llama on demand" in line
        answers: list[httpx.Response] = []

        def ask() -> None:
            body = {"prompt": "abc", "max_tokens": 5}
            answers.append(httpx.post(f"{url}/v1/completions", json=body, timeout=PATIENCE))

        client = threading.Thread(target=ask)
        client.start()
        while httpx.get(f"{url}/v1/models").json()["data"][0]["status"]["value"] == "unloaded":
            pass
        process.send_signal(signal.SIGTERM)
        client.join(PATIENCE)
        assert answers[0].status_code == 200
        assert process.wait(PATIENCE) == 0


def refused(arguments: list[str]) -> str:
    with pytest.raises(InvalidInput) as error:
        app(["serve", *arguments], standalone_mode=False)
    return str(error.value)


@pytest.mark.parametrize(("arguments", "told"), [
    (["--host", "0.0.0.0"], "--api-key"), (["--port", "70000"], "--port: 70000 "),
    (["--api-key", "short"], "--api-key: "), (["a=x", "a=y"], "name of its own"),
    (["x", "y", "--alias", "z"], "NAME=SOURCE"), (["--public", "page"], "--public: "),
    (["--decoder", "no-such"], "--decoder: "), (["--batch", "0"], "--batch: 0 "),
    (["--max-outputs", "0"], "--max-outputs: 0 "),
    (["--request-timeout", "-1"], "--request-timeout: -1.0 "), (["x,decoder=no-such"], "decoder"),
    (["x,decoder=suffix,profile=y"], "one of decoder"),
    (["--hang-timeout", "0"], "--hang-timeout: 0.0 "), (["--queue", "-1"], "--queue: -1 "),
    (["--cors-origin", "x y"], "--cors-origin: "), (["--allowed-host", "x y"], "--allowed-host: "),
    (["--keys", "none.json"], "--keys: "), (["--kv-tokens", "1"], "--kv-tokens: 1 "),
    (["--load-timeout", "0"], "--load-timeout: 0.0 "),
    (["--memory-limit", "8XB"], "--memory-limit: "), (["--memory-limit", "0"], "--memory-limit: "),
    (["--idle-unload", "-1"], "--idle-unload: "), (["--models-dir", "none"], "--models-dir: "),
    (["--idle-unload", "9", "--ray"], "--ray"),
])  # fmt: skip
def test_what_is_refused_before_a_model_is_loaded(arguments: list[str], told: str) -> None:
    assert told in refused(arguments)


def test_an_address_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert "--port" in refused(["--port", str(port)])


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    assert "model" in refused(["--port", "0", str(tmp_path)])


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    # The package has a function with the same name as this module.
    command = import_module("paradecode.cli.serve")
    known = command.find_spec
    monkeypatch.setattr(
        command, "find_spec", lambda name: None if name == "uvicorn" else known(name)
    )
    assert "pip install -e '.[serve]'" in refused([])


def test_other_engines_names_reach_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    import paradecode.serve.server as server

    seen: list[Any] = []

    async def serve(settings: Any, announce: Any) -> None:
        seen.append(settings)

    monkeypatch.setattr(server, "serve", serve)
    monkeypatch.setenv("PARADECODE_API_KEY", "a-key-of-the-environment")
    app(
        ["serve", "-m", "x.gguf", "--served-model-name", "mine", "--max-num-seqs", "3",
         "--max-num-batched-tokens", "99", "-c", "2048", "--no-enable-prefix-caching",
         "--data-parallel-size", "2", "--host", "0.0.0.0", "--speculative-config",
         '{"method": "draft-model", "model": "small", "num_speculative_tokens": 2}'],
        standalone_mode=False,
    )  # fmt: skip
    (settings,) = seen
    (served,) = settings.models
    worker = served.worker
    assert (served.name, served.replicas, worker.model) == ("mine", 2, "x.gguf")
    assert worker.draft_model == "small"
    assert worker.decoder == "draft-model(num_speculative_tokens=2)"
    assert worker.limits == {
        "batch": 3, "kv_tokens": 2048, "step_tokens": 99, "prefix_cache": False,
    }  # fmt: skip
    assert [key.key for key in settings.keys] == ["a-key-of-the-environment"]


def test_settings_of_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    import paradecode.serve.server as server

    seen: list[Any] = []

    async def serve(settings: Any, announce: Any) -> None:
        seen.append(settings)

    monkeypatch.setattr(server, "serve", serve)
    app(
        ["serve", "a=x,y.gguf,decoder=suffix+draft-model,draft_model=small", "b=z,adapter=f.st,"
         "chat_template=rag", "--chat-template", "c.jinja", "--decoder", "copyspec",
         "--hang-timeout", "7", "--load-timeout", "8"],
        standalone_mode=False,
    )  # fmt: skip
    (settings,) = seen
    a, b = (model.worker for model in settings.models)
    assert (a.model, a.decoder, a.draft_model) == ("x,y.gguf", "suffix+draft-model", "small")
    assert (b.model, b.decoder, b.adapter, b.draft_model) == ("z", "copyspec", "f.st", None)
    assert (a.chat_template, b.chat_template) == ("c.jinja", "rag")
    assert (settings.hang_seconds, settings.load_seconds) == (7, 8)
    assert settings.on_demand is None


@pytest.mark.parametrize(
    ("said", "bytes"), [("8GB", 8 * 10**9), ("1.5 gib", 3 << 29), ("700mb", 7 * 10**8), ("99", 99)]
)
def test_a_folder_of_models(
    said: str, bytes: int, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is named as well has its own settings, and is the first one."""
    import paradecode.serve.server as server

    seen: list[Any] = []

    async def serve(settings: Any, announce: Any) -> None:
        seen.append(settings)

    monkeypatch.setattr(server, "serve", serve)
    app(
        ["serve", "--models-dir", str(Path(folder).parent), "--memory-limit", said, "own=x.gguf",
         f"llama={folder},decoder=suffix"],
        standalone_mode=False,
    )  # fmt: skip
    (settings,) = seen
    assert [(model.name, model.worker.decoder) for model in settings.models] == [
        ("own", "auto"), ("llama", "suffix"),
    ]  # fmt: skip
    assert (settings.on_demand.memory_bytes, settings.on_demand.idle_seconds) == (bytes, None)
