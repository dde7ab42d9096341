"""Tests of `paradecode trace` and `paradecode generate --trace`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from paradecode.cli import app
from paradecode.core.errors import InvalidInput


def paradecode(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_trace_writes_a_page_where_one_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = paradecode("trace", "Say yes.", "--max-tokens", "6")
    assert run.exit_code == 0, run.exception
    assert run.stdout == "trace.html\n"
    assert "paradecode-trace" in (tmp_path / "trace.html").read_text("utf-8")


def test_trace_json_and_page_at_once(tmp_path: Path) -> None:
    file = tmp_path / "out.html"
    run = paradecode("trace", "Say yes.", "--max-tokens", "6", "--json", "-o", str(file))
    trace = json.loads(run.stdout)
    assert (trace["format"], trace["version"]) == ("paradecode-trace", 1)
    assert 1 <= len(trace["tokens"]) <= 6
    assert all(0 < token["probability"] <= 1 for token in trace["tokens"])
    assert "Say yes." in trace["prompt"]
    assert file.exists()


def test_trace_in_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = paradecode("trace", "Say yes.", "--max-tokens", "6", "--terminal")
    assert "forward" in run.stdout
    assert "draft tokens accepted" in run.stdout
    assert list(tmp_path.iterdir()) == []


def test_generate_with_a_trace_prints_the_same_answer(tmp_path: Path) -> None:
    arguments = ["generate", "Say yes.", "--max-tokens", "6", "--json"]
    plain = json.loads(paradecode(*arguments).stdout)
    traced = json.loads(paradecode(*arguments, "--trace", str(tmp_path / "t.html")).stdout)
    assert traced.keys() == plain.keys()
    assert traced["token_ids"] == plain["token_ids"]
    assert (tmp_path / "t.html").exists()


@pytest.mark.parametrize("arguments", [
    ["trace", "hi", "-o", "no/such/folder/t.html"], ["trace", "hi", "-o", "."],
    ["generate", "hi", "--trace", "no/such/folder/t.html"],
])  # fmt: skip
def test_a_page_that_cannot_be_written_is_refused_first(arguments: list[str]) -> None:
    run = paradecode(*arguments)
    assert isinstance(run.exception, InvalidInput)
    assert run.exception.field in ("--output", "--trace")


def test_a_trace_shows_one_answer(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"turns": ["Hello"]}\n', "utf-8")
    run = paradecode("generate", "--prompts", str(prompts), "--trace", str(tmp_path / "t.html"))
    assert isinstance(run.exception, InvalidInput)
    assert "--trace" in str(run.exception)
