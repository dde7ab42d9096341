"""Tests of `paradecode replay`, from the prompts file to the table."""

import json
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from paradecode.cli import app
from paradecode.llm import LLM
from paradecode.testing.draft_heads import random_head
from paradecode_lab.measure.replay import player, timing
from program import in_process, quick_costs


def replay(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["replay", *arguments])


def prompts_file(folder: Path, count: int) -> Path:
    lines = [
        {"id": f"p{n}", "group": "ab"[n % 2], "turns": [f"Say: one two three {n} one two three"]}
        for n in range(count)
    ]
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)), "utf-8")
    return path


@pytest.mark.wide
def test_record_and_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick_costs(monkeypatch)
    monkeypatch.setattr(timing, "MOST_REQUESTS", 1)
    monkeypatch.setattr(player, "COLD_STEPS", 2)
    made = str(tmp_path / "a.replay")
    run = replay("record", made, "--prompts", str(prompts_file(tmp_path, 2)), "--max-tokens", "8",
                 "--no-calibrate")  # fmt: skip
    assert run.exit_code == 0, run.output
    run = replay("run", made, "prompt-lookup", "suffix+copyspec(budget=fixed)", "--json")
    record = json.loads(run.stdout)
    names = [method["method"] for method in record["methods"]]
    assert names == ["greedy", "prompt-lookup", "suffix+copyspec(budget=fixed)"]
    assert record["requests"] == 2
    assert record["too_short"].startswith("Too short: 2 prompts of ")
    for method in record["methods"]:
        assert method["groups"].keys() == {"a", "b"}
        assert {"acceptance", "mean_acceptance_length", "forwards", "forwards_saved", "drafted",
                "accepted", "drafter_seconds_per_token", "seconds", "speed_up",
                } <= method["total"].keys()  # fmt: skip
    head = random_head("eagle3", LLM().config, tmp_path / "head")
    run = replay("run", made, f"suffix+eagle(head='{head}',budget=fixed)", "--json")
    _, played = json.loads(run.stdout)["methods"]
    assert played["exact"]
    assert played["total"]["drafted"] > 0
    table = replay("run", made)
    assert table.exit_code == 0
    assert "token-recycling" in table.stdout


def test_errors_name_the_fix(tmp_path: Path, monkeypatch, capsys) -> None:
    for arguments in (["run", str(tmp_path / "no.replay")],
                      ["run", str(prompts_file(tmp_path, 1))],
                      ["record", str(tmp_path / "x"), "--temperature", "-1"]):  # fmt: skip
        status, error = in_process(["replay", *arguments], monkeypatch, capsys)
        assert status == 2
        assert "error:" in error
