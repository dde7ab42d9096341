"""Tests what `tools.figures.trained_parts` measures, and the table of its result."""

import json
from pathlib import Path

import pytest

from paradecode.core.errors import InvalidInput
from paradecode.methods.specs import parse
from paradecode.testing.trained_parts import constant_filter, joint_layer
from repository import ROOT

parts = pytest.importorskip("tools.figures.trained_parts")

RESULT = ROOT / "bench" / "results" / "trained_parts.json"


def test_the_page_has_the_table_of_the_result() -> None:
    page = (ROOT / "docs" / "training.md").read_text("utf-8")
    assert parts.table(json.loads(RESULT.read_text("utf-8"))) in page


def test_what_is_measured_can_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every method that is going to be measured can be parsed before an hour of training."""
    monkeypatch.chdir(tmp_path)
    constant_filter(0.0).save(Path("filter.safetensors"))
    for name in ("zero", "layer"):
        joint_layer().save(Path(f"{name}.safetensors"))
    for model, specs in parts.METHODS.items():
        assert parts.ways(model) == specs
        assert all(parse(spec).method.family == "diffusion" for spec in specs)
    Path("layer.safetensors").unlink()
    assert not any("layer.safetensors" in spec for spec in parts.ways(parts.DEFAULT_MODEL))


def test_a_layer_that_changes_nothing_is_not_called_trained(tmp_path: Path) -> None:
    joint_layer().save(tmp_path / "layer")
    joint_layer(size=0.0).save(tmp_path / "zero")
    parts.require_trained(tmp_path / "layer")
    with pytest.raises(InvalidInput, match="it changes nothing"):
        parts.require_trained(tmp_path / "zero")
    known = json.loads(RESULT.read_text("utf-8"))
    assert parts.without_untrained(known) == known
    rows = [{"method": "joint-sampler(layer='layer.safetensors')"}, {"method": "static"}]
    learned = {"layer": 0.1, "stale": 0.2}
    for one, kept in ((learned, rows), ({"layer": 0.2, "stale": 0.2}, rows[1:])):
        made = {"training": {"layer": {"one": one, "all": one}}, "methods": rows}
        assert parts.without_untrained(made)["methods"] == kept
