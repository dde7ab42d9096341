"""Commands that log samples and fit a part must refuse bad settings before they do any work."""

import sys
from pathlib import Path

import pytest
from train_command import run

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM

DRAFTS = ("acceptance-head", "tree-selector")
CANVASES = ("unmask-filter", "joint-sampler", "refine", "r2", "dparallel")


@pytest.mark.parametrize("command", [*DRAFTS, *CANVASES])
def test_what_cannot_work_is_refused_before_a_model_is_loaded(tmp_path, command, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(LLM, "__init__", None)
    good = tmp_path / "out"
    own = [([good, "--prompts", tmp_path / "none"], "prompts")]
    if command in DRAFTS:
        own = [
            ([good, "--decoder", "no-such-method"], "decoder"),
            ([good, "--temperature", "-1"], "temperature"),
        ]
    for arguments, field in (
        ([Path(__file__).parent], "OUTPUT"),
        ([tmp_path / "no" / "out"], "OUTPUT"),
        ([good, "--samples", tmp_path / "no" / "samples"], "--samples"),
        ([good, "--max-tokens", 1 << 40], "--max-tokens"),
        *own,
    ):
        with pytest.raises(InvalidInput, match=field):
            run(command, *arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [*DRAFTS, *CANVASES])
def test_without_pytorch_it_says_what_to_install(tmp_path, command, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InvalidInput, match=r"lab\[train\]"):
        run(command, tmp_path / "out")
