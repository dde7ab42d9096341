"""The ways that the figure of models that decode in another way compares."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paradecode.methods.specs import methods
from repository import ROOT
from tools.figures import retrained


def test_every_model_is_measured_with_its_own_method() -> None:
    assert retrained.WAYS[retrained.BASE][0] == retrained.PLAIN
    for model, ways in retrained.WAYS.items():
        for named in (methods()[way.partition("(")[0]] for way in ways):
            own = named.name != retrained.PLAIN and model != retrained.BASE
            assert named.guarantee == ("lossy" if own else "exact")
            assert model.startswith(named.name) or not own


def test_what_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without trained models: the base, exactly itself, in a table that is put into a page."""
    out, page = tmp_path / "figures.json", tmp_path / "page.md"
    page.write_text("<!-- figures:begin -->\n<!-- figures:end -->\n")
    command = ["x", str(tmp_path), "--instances", "1", "--rounds", "1", "--max-tokens", "8"]
    monkeypatch.setattr("sys.argv", [*command, "--out", str(out), "--into", str(page)])
    monkeypatch.setattr(retrained, "TASKS", retrained.TASKS[:2])
    retrained.main()
    plain, lookup = json.loads(out.read_text())["methods"]
    assert plain["equal"] == plain["outputs"] == lookup["equal"] == 2
    assert plain["tokens_a_forward"] == 1 <= lookup["tokens_a_forward"]
    assert plain["layers"] == 6
    assert "| `prompt-lookup` |" in page.read_text()


@pytest.mark.parametrize("file", ["retrained", "retrained_more"])
def test_the_page_has_what_was_measured(file: str) -> None:
    made = json.loads((ROOT / "bench" / "results" / f"{file}.json").read_text("utf-8"))
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    assert retrained.markdown(retrained.COLUMNS, made["methods"]) in page
