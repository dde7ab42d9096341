"""The part of a page that is written from a result, and pictures that stand alone."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")

from paradecode.core.errors import InvalidInput
from paradecode.measure.charts.all import charts_of
from paradecode.measure.charts.chart import Chart
from paradecode.measure.charts.looks import looks_of
from paradecode.measure.charts.svg import document
from paradecode.measure.report.load import read_sheet
from repository import ROOT
from tools.pages.generation_page import files
from tools.pages.marked import insert

RESULTS = ROOT / "bench" / "results"
MARKS = "<!-- generation:begin -->\n<!-- generation:end -->"


def test_what_is_written_by_hand_stays(tmp_path: Path) -> None:
    (tmp_path / "benchmarks.md").write_text(f"before\n{MARKS}\nafter", "utf-8")
    written = files(RESULTS / "peers.json", tmp_path)
    page = written.pop("benchmarks.md")
    assert page.startswith("before\n<!-- generation:begin -->\n\n- Model: ")
    assert page.endswith("\n<!-- generation:end -->\nafter")
    assert all(f"]({name})" in page for name in written)
    (tmp_path / "benchmarks.md").write_text(page, "utf-8")
    assert files(RESULTS / "peers.json", tmp_path)["benchmarks.md"] == page
    with pytest.raises(InvalidInput, match="generation:begin"):
        insert("no marks", "generation", "text")


def test_the_page_and_its_pictures_are_those_of_the_result() -> None:
    made = files(RESULTS / "generation.json", ROOT / "docs")
    assert (ROOT / "docs" / "benchmarks.md").read_text("utf-8") == made.pop("benchmarks.md")
    for name, text in made.items():
        assert said((ROOT / "docs" / name).read_text("utf-8")) == said(text), name


def said(svg: str) -> list[str | None]:
    """Every word and every figure of a picture (those of marks show on hover), in their order; how
    versions of matplotlib place them may differ."""
    names = [f"{{http://www.w3.org/2000/svg}}{name}" for name in ("text", "title")]
    return [each.text for each in ElementTree.fromstring(svg).iter() if each.tag in names]


def test_pictures_stand_alone() -> None:
    sheet = read_sheet(RESULTS / "peers.json")
    for chart in charts_of(sheet, looks_of([sheet])).values():
        text = document(chart)
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        words = " ".join(each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text"))
        assert chart.title in words
        assert chart.subtitle in words
        assert "var(" not in text
        assert "http" not in re.sub("http://www.w3.org/(2000/svg|1999/xlink)", "", text)


def test_names_in_pictures_are_only_text() -> None:
    evil = '<script>"&'
    chart = Chart(evil, f"{evil} " * 9, 3, lambda figure: figure.text(0, 0, f"$x^2$ {evil}"))
    root = ElementTree.fromstring(document(chart))
    assert {each.tag.rpartition("}")[2] for each in root.iter()} == {"svg", "path", "text", "g"}
    assert f"$x^2$ {evil}" in said(document(chart))
