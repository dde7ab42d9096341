"""The ways that the figure of models that decode in another way compares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paradecode.methods.registry import parse
from tools.figures import retrained


def test_every_model_is_measured_plainly_first() -> None:
    for model, (first, *others) in retrained.WAYS.items():
        assert first == retrained.PLAIN
        for way in others:
            named = parse(way.format("file"))
            assert named.method.name == model or model == retrained.BASE
            assert named.guarantee == ("exact" if model == retrained.BASE else "lossy")


def test_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without trained models: the base, exactly itself, in a table that is put into a page."""
    out, page = tmp_path / "figures.json", tmp_path / "page.md"
    page.write_text("<!-- retrained:begin -->\n<!-- retrained:end -->\n")
    command = ["x", str(tmp_path), "--instances", "1", "--rounds", "1", "--max-tokens", "8"]
    monkeypatch.setattr("sys.argv", [*command, "--out", str(out), "--into", str(page)])
    monkeypatch.setattr(retrained, "TASKS", retrained.TASKS[:2])
    retrained.main()
    plain, lookup = json.loads(out.read_text())["methods"]
    assert plain["equal"] == plain["outputs"] == lookup["equal"] == 2
    assert plain["tokens_a_forward"] == 1 <= lookup["tokens_a_forward"]
    assert plain["layers"] == 6
    assert "| `prompt-lookup` |" in page.read_text()
