"""`paradecode train acceptance-head` and `tree-selector`: the way from prompts to a used file."""

from __future__ import annotations

import json

import pytest
from train_command import run

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM


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
        plain = llm.complete("The three primary colours are", max_tokens=24, decoder=None)
        made = llm.complete("The three primary colours are", max_tokens=24, decoder=spec)
    assert made.token_ids == plain.token_ids
