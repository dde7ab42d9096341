"""The part of a page that is written from a result, and pictures that stand alone."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from paradecode.core.errors import InvalidInput
from paradecode.measure.report.charts.all import draw_all
from paradecode.measure.report.drawing import Drawing, text_width, wrapped
from paradecode.measure.report.load import read_sheet
from paradecode.measure.report.palette import looks
from paradecode.measure.report.svg import document
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
    for name, text in files(RESULTS / "generation.json", ROOT / "docs").items():
        assert (ROOT / "docs" / name).read_text("utf-8") == text, name


def test_pictures_stand_alone() -> None:
    sheet = read_sheet(RESULTS / "peers.json")
    for drawing in draw_all(sheet, looks([sheet])).values():
        text = document(drawing)
        root = ElementTree.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        words = " ".join(each.text or "" for each in root.iter("{http://www.w3.org/2000/svg}text"))
        assert drawing.title in words
        assert drawing.subtitle in words
        assert "var(" not in text
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_names_in_pictures_are_only_text() -> None:
    evil = '<script>"&'
    root = ElementTree.fromstring(document(Drawing(evil, f"{evil} " * 90, 300, 10)))
    assert {each.tag.rpartition("}")[2] for each in root.iter()} == {"svg", "rect", "text", "g"}


def test_lines_are_no_wider_than_their_room() -> None:
    text = "a few words " * 20
    lines = wrapped(text, 120, 12)
    assert " ".join(lines) == text.strip()
    assert all(text_width(line, 12) <= 120 for line in lines)
    assert wrapped("", 10) == []
    assert wrapped("unbreakable", 5) == ["unbreakable"]
