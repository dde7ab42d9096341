"""`paradecode train acceptance-head` and `tree-selector`: the way from prompts to a used file."""

from __future__ import annotations

import json
import sys

import pytest
from typer.testing import CliRunner

from paradecode.cli import app
from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM

COMMANDS = ("acceptance-head", "tree-selector")


def run(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["train", *map(str, arguments)])
    if done.exception is not None:
        raise done.exception
    return done.output


@pytest.mark.parametrize("command", COMMANDS)
def test_what_cannot_work_is_refused_before_a_model_is_loaded(tmp_path, command, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(LLM, "__init__", None)
    good = tmp_path / "out"
    for arguments, field in (
        ([tmp_path], "OUTPUT"),
        ([tmp_path / "no" / "out"], "OUTPUT"),
        ([good, "--samples", tmp_path / "no" / "samples"], "--samples"),
        ([good, "--decoder", "no-such-method"], "decoder"),
        ([good, "--temperature", "-1"], "temperature"),
        ([good, "--max-tokens", 1 << 40], "max_tokens"),
    ):
        with pytest.raises(InvalidInput, match=field):
            run(command, *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", COMMANDS)
def test_without_pytorch_it_says_what_to_install(tmp_path, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InvalidInput, match=r"paradecode\[train\]"):
        run(command, tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "budget", "setting"),
    [
        ("acceptance-head", "specdec++", "acceptance_head"),
        ("tree-selector", "delayed", "tree_selector"),
    ],
)
def test_from_prompts_to_a_file_that_decodes(tmp_path, command, budget, setting):
    pytest.importorskip("torch")
    out, samples = tmp_path / "out", tmp_path / "samples"
    arguments = [
        "--limit", 8, "--max-tokens", 48, "--epochs", 2, "--samples", samples, "--json",
        "--decoder", "layer-skip(skip=0.1,width=2,num_speculative_tokens=4)",
    ]  # fmt: skip
    first = run(command, out, *arguments)
    report = json.loads(first[first.index("{") :])
    assert report["training"] + report["held_out"] >= 100
    written = out.read_bytes()
    again = run(command, out, *arguments)  # From the samples, without decoding.
    assert json.loads(again[again.index("{") :]) == report
    assert out.read_bytes() == written
    with pytest.raises(InvalidInput, match="another workload"):
        run(command, out, *arguments, "--seed", 1)
    spec = f"layer-skip(skip=0.1,budget='{budget}',{setting}='{out}')"
    with LLM() as llm:
        plain = llm.generate("The three primary colours are", max_tokens=24, decoder=None)
        made = llm.generate("The three primary colours are", max_tokens=24, decoder=spec)
    assert made.token_ids == plain.token_ids
