"""Pages that are generated are what the generator writes from the committed results."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from paradecode.bench.__main__ import main as render
from paradecode.report.methods_page import page

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results"


def test_methods_page() -> None:
    files = ("methods.json", "methods_pair.json")
    results, pair = (json.loads((RESULTS / name).read_text("utf-8")) for name in files)
    assert page(results, pair) == (ROOT / "docs" / "methods.md").read_text("utf-8")


def test_benchmarks_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    copy = tmp_path / "benchmarks.md"
    copy.write_text(
        re.sub(r"(?s)(<!-- bench:begin -->).*(<!-- bench:end -->)", r"\1\n\2", committed)
    )
    assert copy.read_text("utf-8") != committed
    arguments = [str(RESULTS / "peers.json"), "--baseline", "llama-cpp/q4_1", "--into", str(copy)]
    monkeypatch.setattr(sys, "argv", ["paradecode.bench", *arguments])
    assert render() == 0
    assert copy.read_text("utf-8") == committed


def test_headline() -> None:
    """The README's figures are those of the benchmark's table."""
    table = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    readme = (ROOT / "README.md").read_text("utf-8")
    for engine in ("paradecode-native/q4_1", "paradecode-native/q4_1+prompt-lookup"):
        (row,) = [line for line in table.splitlines() if line.startswith(f"| {engine} | ")][:1]
        speed, ratio = (cell.split()[0] for cell in row.split("|")[2:4])
        assert f"{speed} " in readme
        assert ratio in readme
    assert "104/104" in table


def test_forward_table() -> None:
    committed = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    for case in json.loads((RESULTS / "forward.json").read_text("utf-8"))["cases"]:
        assert (
            f"| {case['ours_ms']:.2f} | {case['llama_cpp_ms']:.2f} | {case['ratio']:.2f} |"
            in committed
        )


def test_every_link_between_pages_leads_somewhere() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    for source in pages:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", source.read_text("utf-8")):
            assert (source.parent / target).exists(), f"{source.name} links to {target}"
