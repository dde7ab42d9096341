"""The table of draft models with nested exits."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paradecode.core.errors import InvalidInput
from paradecode.methods.specs import parse
from repository import ROOT

pytest.importorskip("torch")

import torch

from paradecode.models.catalogue import open_model
from paradecode_lab.training.retraining.nested import NestedObjective
from tools.figures import nested

TINY = "paradecode/tiny-autoregressive"


def test_all_ways_are_exact() -> None:
    for draft, count in (("cut", 2), ("trained", 8)):
        found = nested.ways(draft, "1 2")
        assert len(found) == count
        assert {parse(spec).guarantee for spec in found} == {"exact"}


@pytest.mark.wide
def test_what_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures of the tiny model's first three layers, without a step of training."""
    NestedObjective(open_model(TINY), (1, 2, 3), 0, torch.device("cpu")).export(tmp_path)
    (tmp_path / "log.jsonl").write_text('{"step": 20, "loss": 1.5, "seconds": 3.0}\n')
    page = tmp_path / "page.md"
    page.write_text("<!-- out:begin -->\n<!-- out:end -->\n")
    command = ["x", str(tmp_path), "--model", TINY, "--exits", "1 2 3", "--per-group", "1"]
    more = ["--max-tokens", "12", "--out", str(tmp_path / "out.json"), "--into", str(page)]
    monkeypatch.setattr("sys.argv", [*command, *more])
    prompts = nested.load_prompts()[:2]
    monkeypatch.setattr(nested, "load_prompts", lambda: prompts)
    nested.main()
    rows = json.loads((tmp_path / "out.json").read_text())["methods"]
    assert all(row["equal"] == row["prompts"] == 1 for row in rows)
    layers = {row["method"]: row["layers"] for row in rows if row["budget"] == "fixed"}
    assert layers["draft-model(width=1)"] == 3
    assert layers["s2d(exits='1 2 3',sure=0.0)"] == 1
    fixed = [row for row in rows if row["budget"] == "fixed"]
    cut, trained = (row for row in fixed if row["method"] == "draft-model(width=1)")
    assert (cut["accepted"], cut["drafted"]) == (trained["accepted"], trained["drafted"])
    assert "| trained | `s2d(exits='1 2 3',sure=0.9)` | fixed |" in page.read_text()


def test_a_training_that_goes_on_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["x", str(tmp_path), "--exits", "1 2"])
    with pytest.raises(InvalidInput, match="let its training end"):
        nested.main()


def test_the_page_has_what_was_measured() -> None:
    made = json.loads((ROOT / "bench" / "results" / "nested.json").read_text("utf-8"))
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    assert nested.markdown(nested.COLUMNS, made["methods"]) in page
