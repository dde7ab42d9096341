"""What `tools.figures.trained_parts` measures, and the table of its result in the documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paradecode.methods.specs import parse
from paradecode.testing.trained_parts import constant_filter, joint_layer
from repository import ROOT

parts = pytest.importorskip("tools.figures.trained_parts")

RESULT = ROOT / "bench" / "results" / "trained_parts.json"


def test_the_page_has_the_table_of_the_result() -> None:
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    assert parts.table(json.loads(RESULT.read_text("utf-8"))) in page


def test_what_is_measured_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise that is found out after an hour of training."""
    monkeypatch.chdir(tmp_path)
    constant_filter(0.0).save(Path("filter.safetensors"))
    for name in ("zero", "layer"):
        joint_layer().save(Path(f"{name}.safetensors"))
    for specs in parts.METHODS.values():
        assert all(parse(spec).method.family == "diffusion" for spec in specs)
