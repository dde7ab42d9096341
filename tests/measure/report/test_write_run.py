"""Tests of the tables and pictures of a run."""

import json
import sys
from dataclasses import replace

import pytest

from paradecode_lab.measure.report.from_results import sheet_of_results
from paradecode_lab.measure.report.markdown import body
from paradecode_lab.measure.report.write import write_run
from paradecode_lab.measure.results import EngineInfo, Score
from paradecode_lab.measure.tables import number
from tools.pages.benchmarks import main


def _complete(make_results):
    results = make_results({"peer/q": 100, "peer/q+lookup": 130, "paradecode/q": 300}, noise=0.1)
    missing = EngineInfo("vllm/x", "vllm", "x", "plain", status="skipped", reason="no wheel | here")
    scores = {
        (r.item, r.token_ids): Score(0.5 * len(r.token_ids), len(r.token_ids), len(r.token_ids))
        for r in results.records
    }
    return replace(results, engines=(*results.engines, missing), scores=scores)


def test_report_says_what_was_found(make_results) -> None:
    results = _complete(make_results)
    text = body(sheet_of_results(results, "peer/q"))
    rows = [line for line in text.splitlines() if line.startswith("| `p")]
    assert [row.split(" | ")[0] for row in rows[:3]] == [
        "| `paradecode/q`", "| `peer/q+lookup`", "| `peer/q`",
    ]  # fmt: skip
    assert "× peer/q" in text
    assert "vllm/x: skipped: no wheel | here" in text
    assert "180/180" in text  # All 3 rounds of 60 inputs.
    assert "0.5000" in text
    assert "100.0 %" in text
    widths = {row.count("|") for row in rows[:3]}
    assert len(widths) == 1


def test_files_of_a_run(make_results, tmp_path) -> None:
    files = write_run(_complete(make_results), tmp_path, "peer/q")
    assert {"results.json", "results.md"} <= {file.name for file in files}
    found = json.loads((tmp_path / "results.json").read_text())["aggregates"]
    assert found["baseline"] == "peer/q"
    own = next(e for e in found["engines"] if e["engine"] == "paradecode/q")
    assert own["total"]["speedup"]["value"] == pytest.approx(3, rel=0.1)


def test_pictures_are_drawn(make_results, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    files = write_run(_complete(make_results), tmp_path, "peer/q")
    pictures = [file for file in files if file.suffix == ".png"]
    assert [file.name for file in pictures] == ["speed.png", "groups.png"]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in pictures)


def test_a_baseline_that_was_not_measured_is_left_out(make_results, tmp_path) -> None:
    write_run(_complete(make_results), tmp_path, "nobody/q")
    assert json.loads((tmp_path / "results.json").read_text())["aggregates"]["baseline"] is None


def test_an_empty_run_is_still_reported(make_results, tmp_path) -> None:
    results = replace(make_results({"a/q": 100}), records=())
    assert "results.md" in {file.name for file in write_run(results, tmp_path)}


def test_tables_are_put_between_the_markers(make_results, tmp_path, monkeypatch, capsys) -> None:
    write_run(_complete(make_results), tmp_path, "peer/q")
    document = tmp_path / "doc.md"
    document.write_text("# Title\n\n<!-- bench:begin -->\nold\n<!-- bench:end -->\n\nafter\n")
    arguments = ["x", str(tmp_path / "results.json"), "--baseline", "peer/q"]
    monkeypatch.setattr(sys, "argv", [*arguments, "--into", str(document)])
    assert main() == 0
    text = document.read_text()
    assert text.startswith("# Title")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "paradecode/q" in text
    monkeypatch.setattr(sys, "argv", arguments)
    assert main() == 0
    assert "paradecode/q" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["x", str(document)])
    assert main() == 2
    document.write_text("# No place for it\n")
    monkeypatch.setattr(sys, "argv", [*arguments, "--into", str(document)])
    assert main() == 2
    assert document.read_text() == "# No place for it\n"
    assert "bench:begin" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1234"), (99.94, "99.9"), (12.0, "12.0"), (1.234, "1.23")]
)
def test_numbers_have_three_digits(value, text) -> None:
    assert number(value) == text
