"""Tests of `paradecode verify --endpoint` over HTTP: its files, its exit status and its errors."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from click.testing import Result
from typer.testing import CliRunner

from paradecode.cli import app
from program import in_process
from scripted_server import ScriptedServer

DRAFTS = 'speculative={"drafts": 1}'


class Handler(BaseHTTPRequestHandler):
    """Serves a scripted server; a prompt of the word ``bad`` gets no JSON."""

    protocol_version = "HTTP/1.1"
    scripted: ScriptedServer
    keys: set[str | None]

    def do_GET(self) -> None:
        models = {"data": [{"id": "folder/scripted"}]}
        self.answer(json.dumps(models) if self.path == "/v1/models" else self.scripted.metrics())

    def do_POST(self) -> None:
        self.keys.add(self.headers.get("Authorization"))
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body["prompt"] == "refused":
            self.answer('{"error": "no room"}', 503)
        elif body.get("stream"):
            events = self.scripted.events(self.path, body)
            lines = "".join(f"data: {json.dumps(event)}\n\n" for _, event in events)
            self.answer(f"{lines}data: [DONE]\n\n")
        else:
            found = json.dumps(self.scripted.post(self.path, body))
            self.answer("{not json" if body["prompt"] == "bad" else found)

    def answer(self, text: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""


@pytest.fixture
def served() -> Iterator[tuple[str, type[Handler]]]:
    own = type("Own", (Handler,), {"scripted": ScriptedServer(0), "keys": set()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), own)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", own
    server.shutdown()
    server.server_close()


def verify(url: str, *arguments: str) -> Result:
    small = ["--count", "2", "--max-tokens", "8", "--temperature", "0", "--concurrency", "2"]
    return CliRunner().invoke(app, ["verify", "--endpoint", url, *small, *arguments])


def test_the_files_and_the_status(served, tmp_path: Path) -> None:
    url, own = served
    run = verify(url, "--body", DRAFTS, "--api-key", "k", "-o", str(tmp_path / "c.html"), "--json")
    record = json.loads(run.stdout)
    assert (run.exit_code, record["verdict"]) == (0, "pass")
    assert record["schema"] == "paradecode-server-certificate/1"
    assert record["speculative"] == f'scripted at {url}/v1 with {{"drafts": 1}}'
    assert own.keys == {"Bearer k"}
    assert "<h1>" in (tmp_path / "c.html").read_text()
    run = verify(url, "--body", DRAFTS, "-o", str(tmp_path / "c.json"), "--command", "serve x")
    assert "PASS" in run.stdout
    assert json.loads((tmp_path / "c.json").read_text())["started by"] == "serve x"


def test_one_that_differs_fails_and_an_unknown_one_has_no_certificate(served) -> None:
    url, own = served
    own.scripted.counts = "chunks"  # Drafts of this server are in the same answer at once.
    run = verify(url, "--body", DRAFTS)
    assert (run.exit_code, "NO CERTIFICATE" in run.stdout) == (2, True)
    own.scripted.counts = "metrics"
    own.scripted.shift = 0.0
    own.scripted.spoils = (own.scripted.last,)
    run = verify(url, "--body", DRAFTS)
    assert (run.exit_code, "FAIL" in run.stdout) == (1, True)


@pytest.mark.parametrize(("prompt", "message"), [
    ("bad", "something else than JSON"), ("refused", "it answers 503 to /v1/completions"),
])  # fmt: skip
def test_bad_answers(served, prompt: str, message: str, tmp_path, monkeypatch, capsys) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(json.dumps({"id": "a", "group": "b", "turns": [prompt]}) + "\n")
    arguments = ["verify", "-e", served[0], "--body", DRAFTS, "--prompts", str(file)]
    status, error = in_process(arguments, monkeypatch, capsys)
    assert status == 2
    assert message in error


@pytest.mark.parametrize(("arguments", "message"), [
    ([], "--body"), (["--body", "x"], "--body"), (["--body", DRAFTS, "--api", "x"], "--api"),
    (["--body", DRAFTS, "-o", "x.txt"], "--output"),
    (["--body", DRAFTS, "-d", "suffix"], "--decoder"),
    (["--body", DRAFTS, "--concurrency", "1"], "--concurrency"),
    (["--body", DRAFTS, "--samples", "10"], "--samples"),
    (["-e", "http://b", "-e", "http://c"], "--endpoint"), (["--body", DRAFTS], "start the server"),
])  # fmt: skip
def test_what_is_refused(arguments: list[str], message: str, monkeypatch, capsys) -> None:
    status, error = in_process(
        ["verify", "-e", "http://127.0.0.1:9", *arguments], monkeypatch, capsys
    )
    assert status == 2
    assert message in error
