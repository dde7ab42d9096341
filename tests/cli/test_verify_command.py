"""Tests of `paradecode verify` on the default model: its report, its JSON and its exit status."""

import json
import signal
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from paradecode.cli import app
from paradecode_lab.measure.certificate.plan import COUNT
from paradecode_lab.measure.prompts import by_turns, load_prompts
from program import in_process

QUICK = ["--count", "2", "--max-tokens", "8"]


def verify(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["verify", *arguments])


def test_json_contract() -> None:
    run = verify(*QUICK, "--json", "--decoder", "suffix", "--temperature", "0")
    record = json.loads(run.stdout)
    assert run.exit_code == 0
    assert (record["schema"], record["verdict"]) == ("paradecode-certificate/1", "pass")
    assert {
        "machine", "model", "backend", "subject", "guarantee", "plan", "equality", "invariance",
        "distribution", "failures", "notes", "created", "seconds",
    } <= record.keys()  # fmt: skip
    model = record["model"]
    assert model["name"] == "smollm2-135m-instruct"
    assert len(model["fingerprint"]) == 64
    assert list(model["files"].values()) == [
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    ]
    assert record["backend"]["name"] == "native"
    assert record["equality"]["runs"] == record["equality"]["equal"] == 2  # Only greedy requests.
    assert record["plan"]["temperature"] == 0.0
    assert record["machine"]["packages"]["numpy"]


@pytest.mark.wide
def test_prompts_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text('{"id": "mine", "group": "own", "turns": ["Repeat: a b a b a b a b"]}\n')
    run = verify("--prompts", str(path), "--max-tokens", "8", "--temperature", "0", "--json")
    record = json.loads(run.stdout)
    assert record["texts"] == record["equality"]["runs"] == 1


@pytest.mark.parametrize(("arguments", "message"), [
    (["--decoder", "nonsense"], "decoder"), (["--samples", "3"], "samples"),
    (["--temperature", "nan"], "temperature"), (["--count", "0"], "count"),
    (["--prompts", "/nowhere.jsonl"], "cannot be read"),
    (["--decoder", "prompt-lookup(verifier=nss)", "--temperature", "0"], "temperature"),
    (["--count", "1", "--decoder", "prompt-lookup(verifier=greedy)"], "verifier"),
])  # fmt: skip
def test_usage_errors(arguments, message, monkeypatch, capsys):
    status, error = in_process(["verify", *arguments], monkeypatch, capsys)
    assert status == 2
    assert message in error


def test_ctrl_c_is_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: object) -> None:
        if arguments[1:3] == ("token equality", 1):
            signal.raise_signal(signal.SIGINT)

    command = import_module("paradecode_lab.commands.verify")
    monkeypatch.setattr(command._Stages, "__call__", interrupted)
    run = verify(*QUICK)
    assert run.exit_code == 130, run.output
    assert run.stdout == ""
    assert "no certificate" in run.stderr
    assert "Traceback" not in run.stderr


def test_prompts_are_spread_over_the_groups() -> None:
    prompts = load_prompts()
    chosen = by_turns(prompts)
    assert sorted(chosen, key=lambda p: p.id) == sorted(prompts, key=lambda p: p.id)
    groups = {prompt.group for prompt in prompts}
    assert [p.group for p in chosen[: len(groups)]] == list(dict.fromkeys(p.group for p in prompts))
    assert len(groups) <= COUNT
