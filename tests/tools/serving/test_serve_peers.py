"""Tests servers for the comparison: health, pausing, ending, and servers that are left out."""

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from paradecode_lab.measure.result_files import read_results
from patience import state, until
from repository import ROOT
from tools.serving.page import table
from tools.serving.peers import NotStarted, Server, _answers, _free_port, paradecode

STUB = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"status": "ok"}')
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_server_is_started_paused_and_ended(tmp_path: Path) -> None:
    port = _free_port()
    server = Server("stub", [sys.executable, "-c", STUB, str(port)], port)
    try:
        server.start(tmp_path)
        (endpoint,) = server.endpoints()
        assert (endpoint.name, endpoint.url) == ("stub", f"http://127.0.0.1:{port}/v1")
        server.signal(signal.SIGSTOP)
        stopped = server.process.pid
        until(lambda: state(stopped) == "T")
        server.signal(signal.SIGCONT)
        assert _answers(f"http://127.0.0.1:{port}/health")
    finally:
        server.kill()
    assert not _answers(f"http://127.0.0.1:{port}/health")
    server.signal(signal.SIGCONT)  # This is harmless if the server has ended.


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with pytest.raises(NotStarted, match="no such model"):
        Server("broken", command, _free_port()).start(tmp_path)


@pytest.mark.wide
def test_our_own_command_is_understood() -> None:
    """Every option with which our server is started exists."""
    server = paradecode(Path("model.gguf"), 2, 16)
    assert list(server.bodies) == ["paradecode-plain", "paradecode"]
    run = subprocess.run([*server.command, "--help"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_keys_figures_in_the_page_are_the_committed_ones() -> None:
    """The page has the committed figures, and fair shares keep the latency of a modest key low."""
    found = json.loads((ROOT / "bench" / "results" / "serve_keys.json").read_text("utf-8"))
    rows = {row["phase"]: row for row in found["phases"]}
    page = (ROOT / "docs" / "serve.md").read_text("utf-8")
    for phase in ("alone", "beside", "one key", "bounded"):
        assert f"{rows[phase]['median']:.2f} s" in page, phase
    fair = max(rows[phase]["times"] for phase in ("beside", "bounded"))
    assert 3 * fair < rows["one key"]["times"]


def test_the_page_shows_the_committed_figures() -> None:
    """The page has the committed figures.

    After a change, run `python -m tools.serving.page` as bench/README.md says.
    """
    results = read_results(ROOT / "bench" / "results" / "serve_peers_135m.json")
    page = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    assert table(results) in page
    # Endpoints, rounds, and requests of the loads.
    assert len(results.records) == 4 * 2 * (3 * 24 + 64)
    slower = [replace(each, wall_seconds=2 * each.wall_seconds) for each in results.records]
    assert table(replace(results, records=tuple(slower))) not in page
    settings = {**results.settings, "left_out": {"transformers": "no room"}}
    fewer = table(replace(results, settings=settings))
    assert fewer.endswith("transformers was left out: no room.")
