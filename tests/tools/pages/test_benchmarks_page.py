"""Tests the part of a page that is written from a result, and pictures in files of their own."""

import re
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")

from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.charts.all import charts_of
from paradecode_lab.measure.charts.chart import Chart, looks_of
from paradecode_lab.measure.charts.svg import document
from paradecode_lab.measure.report.load import read_sheet
from repository import ROOT
from tools.pages.benchmarks import main
from tools.pages.marked import insert

RESULTS = ROOT / "bench" / "results"
MARKS = "<!-- generation:begin -->\n<!-- generation:end -->"


def render(monkeypatch: pytest.MonkeyPatch, page: Path, result: str) -> None:
    options = ["--into", str(page), "--name", "generation", "--pictures", "img/decoders"]
    monkeypatch.setattr(sys, "argv", ["x", str(RESULTS / result), *options])
    assert main() == 0


@pytest.mark.wide
def test_what_is_written_by_hand_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{MARKS}\nafter", "utf-8")
    (tmp_path / "img").mkdir()
    render(monkeypatch, page, "peers.json")
    written = page.read_text("utf-8")
    assert written.startswith("before\n<!-- generation:begin -->\n\n- Model: ")
    assert written.endswith("\n<!-- generation:end -->\nafter")
    names = [f"img/{file.name}" for file in (tmp_path / "img").iterdir()]
    assert "img/decoders-speed.svg" in names
    assert all(f"]({name})" in written for name in names)
    with pytest.raises(InvalidInput, match="generation:begin"):
        insert("no marks", "generation", "text")


def test_the_page_and_its_pictures_are_those_of_the_result(tmp_path, monkeypatch):
    """The page and its pictures equal those that are generated from the result.

    After a change, run the commands at the top of tools/pages/benchmarks.py.
    """
    docs = ROOT / "docs"
    shutil.copy(docs / "benchmarks.md", tmp_path)
    (tmp_path / "img").mkdir()
    render(monkeypatch, tmp_path / "benchmarks.md", "generation.json")
    name = "benchmarks.md"
    assert (docs / name).read_text("utf-8") == (tmp_path / name).read_text("utf-8")
    pictures = sorted((tmp_path / "img").iterdir())
    assert pictures
    for file in pictures:
        assert said((docs / "img" / file.name).read_text("utf-8")) == said(file.read_text("utf-8"))


def said(svg: str) -> list[str | None]:
    """Return every word and figure of a picture in their order, including those that show on hover.

    Their places are ignored, because versions of matplotlib differ in them.
    """
    names = [f"{{http://www.w3.org/2000/svg}}{name}" for name in ("text", "title")]
    return [each.text for each in ElementTree.fromstring(svg).iter() if each.tag in names]


@pytest.mark.wide
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
