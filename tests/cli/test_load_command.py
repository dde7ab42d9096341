"""Tests of `paradecode bench load` from the command line."""

import json
from pathlib import Path

import pytest

pytest.importorskip("aiohttp")

from typer.testing import CliRunner

from fake_openai import TOKENS, FakeServer
from paradecode.cli import app
from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.result_files import read_json


def run(server, *arguments, behaviours=("quick",)):
    named = [part for name in behaviours for part in ("-e", f"{name}={server.url}/{name}/v1")]
    small = ["-n", "2", "--rounds", "2", "--warmup", "1"]
    result = CliRunner().invoke(app, ["bench", "load", *named, *small, *arguments])
    if isinstance(result.exception, InvalidInput):
        raise result.exception
    return result.exit_code, result.stdout


def test_json_and_files(server: FakeServer, tmp_path: Path) -> None:
    file = tmp_path / "load.json"
    code, printed = run(
        server, "-c", "1", "-c", "2", "--rate", "50", "--slo-ttft", "5", "--json", "-o", str(file),
        behaviours=("quick", "brisk"),
    )  # fmt: skip
    assert code == 0
    found = json.loads(printed)
    assert found == read_json(file)
    assert found["schema"] == "paradecode-bench/5"
    assert found["machine"]["cores"] >= 1
    assert [e["weights"] for e in found["engines"]] == ["model-of-quick", "model-of-brisk"]
    assert found["settings"]["loads"] == ["c=1", "c=2", "50/s"]
    assert len(found["aggregates"]["figures"]) == 6
    for figures in found["aggregates"]["figures"]:
        assert (figures["requests"], figures["errors"]) == (4, {})
        assert figures["tokens"] == 4 * TOKENS
        assert figures["good"]["value"] == 1.0
    assert file.with_suffix(".png").exists()


def test_tables_and_failures(server: FakeServer) -> None:
    # One of three requests is refused, and the warm-up may take any of them.
    code, printed = run(server, "-n", "3", behaviours=("quick", "flaky"))
    assert code == 1
    assert "TTFT" in printed
    assert "tokens as each server counts them" in " ".join(printed.split())


@pytest.mark.parametrize(("arguments", "field"), [
    (("-c", "0"), "--concurrency"), (("--output", "x.txt"), "--output"),
    (("--count", "chunks"), "--count"), (("--prompts", "/nonexistent/p.txt"), "--prompts"),
])  # fmt: skip
def test_what_is_refused(server: FakeServer, arguments: tuple[str, ...], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        run(server, *arguments)
    assert refused.value.field == field
