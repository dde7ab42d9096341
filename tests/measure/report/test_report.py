"""Tests of results as a page, pictures and Markdown."""

import re
import sys
from dataclasses import replace

import pytest

from elements import Elements
from paradecode.core.errors import InvalidInput
from paradecode_lab.measure.charts.all import charts_of
from paradecode_lab.measure.charts.chart import looks_of
from paradecode_lab.measure.charts.style import drawing, new_figure
from paradecode_lab.measure.report.compare import compare_files
from paradecode_lab.measure.report.load import read_sheet
from paradecode_lab.measure.report.markdown import markdown
from paradecode_lab.measure.report.page import page
from paradecode_lab.measure.report.write import write_report
from paradecode_lab.measure.sheet import PLAIN, Line, Sheet, Tile
from paradecode_lab.measure.statistics import Interval
from repository import ROOT

COMMITTED = ROOT / "bench" / "results"
FILES = ("peers.json", "peers_own_lengths.json", "methods.json", "methods_pair.json")


def about(value: float) -> Interval:
    return Interval(value, 0.9 * value, 1.1 * value)


def line(name: str, speed: float, quality: float, **known) -> Line:
    over = speed / 100
    return Line(
        name, name.partition("(")[0], speed=about(speed), over=about(over),
        quality=Interval(quality, quality, quality),
        groups={"chat": about(over), "code": about(2 * over)}, acceptance=(0.8, 0.5, 0.1),
        split={"target": 6.0, "draft": 1.0, "verify": 0.5, "sample": 0.25, "other": 0.25},
        sweep={1: about(speed), 4: about(3 * speed)}, sweep_over={1: about(over), 4: about(1.0)},
        cells=("badge", "speed", ""), **known,
    )  # fmt: skip


@pytest.fixture(scope="module")
def sheet() -> Sheet:
    plain = replace(line("greedy", 100, 1.0), family=PLAIN, muted=True, acceptance=())
    return Sheet(
        "Decoders on <toy>",
        (plain, line("fast", 180, 1.0, standing="exact", badge="exact 9/9"),
         line("loose", 240, 0.7, standing="lossy"),
         line("wrong", 90, 0.95, standing="broken")),
        (("Model", "a & b"),), (Tile("1.8×", "plain", bad=True),), "greedy", "Own choice", True,
        ("output", "tokens/s", "empty"), ("A note.",),
    )  # fmt: skip


@pytest.fixture(scope="module")
def html(sheet) -> str:
    return page([sheet])


@pytest.fixture
def without_pictures(monkeypatch) -> None:
    """Replace pictures, which take long to draw, for tests of everything around them."""
    monkeypatch.setattr("paradecode_lab.measure.report.page.inline", lambda chart: "<svg></svg>")


def test_the_page_needs_nothing_from_elsewhere(html):
    for tag, attributes, _ in Elements(html).found:
        assert tag not in ("script", "link", "img", "iframe", "object")
        assert not {"src", "href", "onclick", "onload"} & attributes.keys()
    assert "default-src 'none'" in html
    assert "url(" not in html
    assert "@import" not in html


def test_hostile_names_are_only_text(sheet):
    evil = '<script>alert(1)</script>"&'
    lines = (*sheet.lines, replace(sheet.lines[1], name=evil, badge=evil, cells=(evil, evil, evil)))
    bad = replace(sheet, title=evil, lines=lines, notes=(evil,), baseline=evil)
    tags = {tag for tag, *_ in Elements(page([bad])).found}
    assert "script" not in tags
    assert "`" in markdown([bad])


def test_the_page_says_what_was_measured(html):
    for said in ("Decoders on &lt;toy&gt;", "a &amp; b", "exact 9/9", "lossy, 70 %", "≠ plain",
                 "1.8×", "A note.", "Own choice", "prefers-color-scheme:dark"):  # fmt: skip
        assert said in html
    assert "180 tokens/s (162 to 198)" in html  # This text shows on hover.
    assert "empty" not in html  # A column whose cells are all empty is left out.


def test_every_chart_is_drawn_inside_of_its_frame(sheet):
    Text = pytest.importorskip("matplotlib.text").Text
    charts = charts_of(sheet, looks_of([sheet]))
    assert list(charts) == ["speed", "frontier", "groups", "acceptance", "sweep", "split"]
    for chart in charts.values():
        figure = drawn(chart)
        box, texts = figure.get_tightbbox(), {each.get_text() for each in figure.findobj(Text)}
        assert {"fast", "loose"} <= texts
        assert min(box.x0, box.y0) > -0.02
        assert box.x1 < 8.02
        assert box.y1 < chart.height + 0.02


def drawn(chart):
    with drawing():
        figure = new_figure(8, chart.height)
        chart.paint(figure)
        figure.draw_without_rendering()
    return figure


def test_charts_without_data_are_left_out(sheet):
    bare = replace(
        sheet,
        lines=tuple(
            replace(each, quality=None, groups={}, acceptance=(), split={}, sweep={}, sweep_over={})
            for each in sheet.lines
        ),
    )
    assert list(charts_of(bare, looks_of([bare]))) == ["speed"]
    assert list(charts_of(replace(sheet, lines=()), {})) == []
    exact = replace(sheet, lines=sheet.lines[:2])
    # No line trades quality for speed.
    assert "frontier" not in charts_of(exact, looks_of([exact]))


def test_the_frontier_leaves_out_what_is_beaten(sheet):
    pytest.importorskip("matplotlib")
    (axes,) = drawn(charts_of(sheet, looks_of([sheet]))["frontier"]).axes
    (joined,) = [curve for curve in axes.lines if curve.get_linestyle() == "--"]
    assert list(joined.get_xdata()) == [180, 240]  # The other lines are slower and no better.


@pytest.mark.first(1)
@pytest.mark.parametrize("name", FILES)
def test_committed_results_become_pages(name, tmp_path):
    sheet = read_sheet(COMMITTED / name)
    assert sheet.lines
    assert sheet.baseline
    assert sheet.tiles
    html, text = page([sheet]), markdown([sheet])
    Elements(html)
    for each in sheet.lines:
        assert each.name in html
        assert f"| `{each.name}` |" in text
    widths = {row.count("|") for row in re.findall(r"^\| .*$", text.split("\n\n")[2], re.MULTILINE)}
    assert len(widths) == 1


def test_files_and_folders(sheet, tmp_path, without_pictures):
    pytest.importorskip("matplotlib")
    for name, start in (("r.html", b"<!doctype"), ("r.md", b"# Deco"), ("r.png", b"\x89PNG")):
        (written,) = write_report([sheet], tmp_path / name)
        assert written.read_bytes().startswith(start)
    files = write_report([sheet], tmp_path / "all")
    assert {file.name for file in files} == {
        "report.html", "report.md", "speed.png", "frontier.png", "groups.png", "acceptance.png",
        "sweep.png", "split.png",
    }  # fmt: skip
    for bad in ("r.pdf", "no/such/r.html"):
        with pytest.raises(InvalidInput, match="output"):
            write_report([sheet], tmp_path / bad)


def test_pages_without_matplotlib_have_tables_and_say_how_to_get_pictures(
    sheet, tmp_path, monkeypatch
):
    monkeypatch.setattr("paradecode_lab.measure.charts.style.find_spec", lambda name: None)
    with pytest.raises(InvalidInput, match="plots"):
        write_report([sheet], tmp_path / "r.png")
    files = write_report([sheet], tmp_path / "all")
    assert [file.name for file in files] == ["report.html", "report.md"]
    html = files[0].read_text("utf-8")
    assert "pip install -e &#x27;lab[plots]&#x27;" in html
    assert "<table>" in html
    assert "<svg" not in html


def test_files_of_other_kinds_are_refused(tmp_path):
    for text, named in (
        ("{}", "schema"), ('{"schema": "x"}', "schema"), ("[]", "results"), ("", "results"),
        ('{"methods": []}', "methods"), ('{"methods": [{}]}', r"methods\[0\].method"),
        ('{"methods": [{"method": 3}]}', r"methods\[0\].method"),
        ('{"schema": "paradecode-parallel/1"}', r"schema: 'paradecode-parallel/1'.*again"),
    ):  # fmt: skip
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(InvalidInput, match=named):
            read_sheet(tmp_path / "x.json")


@pytest.mark.wide
def test_results_of_two_kinds_cannot_be_compared():
    with pytest.raises(InvalidInput, match="one kind"):
        compare_files(COMMITTED / "peers.json", COMMITTED / "methods.json")
    peers = compare_files(COMMITTED / "peers.json", COMMITTED / "peers.json")
    assert {row[3] for row in peers.rows} == {"1.00 (1.00 to 1.00)"}
    methods = compare_files(COMMITTED / "methods.json", COMMITTED / "methods.json")
    assert all(row[1] == row[2] for row in methods.rows)


@pytest.mark.wide
def test_ratios_over_an_engine_of_both():
    found = compare_files(COMMITTED / "peers.json", COMMITTED / "peers_xeon.json", "llama-cpp/q4_1")
    assert found.head[-1] == "repeats"
    # The second result comes from another machine.
    assert {row[-1] for row in found.rows if "paradecode" in row[0]} == {"no"}
    for baseline, fix in (("nobody/q4", "both results have"), ("greedy", "leave it out")):
        files = ("peers.json",) * 2 if "/" in baseline else ("methods.json",) * 2
        with pytest.raises(InvalidInput, match=fix):
            compare_files(*(COMMITTED / name for name in files), baseline)


@pytest.mark.parametrize(("name", "fix"), [
    ("peers.json", "peers.json has"), ("methods.json", "leave it out"),
    ("graded.json", "leave it out"),
])  # fmt: skip
def test_a_baseline_that_was_not_measured_is_refused(name, fix):
    with pytest.raises(InvalidInput, match=fix) as error:
        read_sheet(COMMITTED / name, "foo")
    assert (error.value.field, error.value.value) == ("baseline", "foo")


def test_the_command(tmp_path, without_pictures):
    from typer.testing import CliRunner

    from paradecode.cli import app

    output = tmp_path / "r.html"
    run = CliRunner().invoke(app, ["report", str(COMMITTED / "peers.json"), "-o", str(output)])
    assert run.exit_code == 0
    assert "llama-cpp/q4_1" in output.read_text()
    run = CliRunner().invoke(app, ["report", str(tmp_path / "none.json"), "-o", str(output)])
    assert run.exit_code == 1
    assert "none.json" in str(run.exception)


@pytest.mark.wide
def test_the_headline_is_that_of_the_committed_results(monkeypatch, tmp_path):
    from tools.pages import headline

    readme = (ROOT / "README.md").read_text("utf-8")
    copy = tmp_path / "README.md"
    empty = re.sub(r"(?s)(<!-- headline:begin -->).*(<!-- headline:end -->)", r"\1\2", readme)
    assert empty != readme
    copy.write_text(empty, "utf-8")
    files = [str(COMMITTED / f"headline_{size}.json") for size in ("135m", "1.5b")]
    monkeypatch.setattr(sys, "argv", ["headline", *files, str(copy)])
    headline.main()
    assert copy.read_text("utf-8") == readme


def test_no_headline_for_figures_that_cannot_be_trusted():
    from paradecode_lab.measure.result_files import read_results
    from tools.pages.headline import headline
    from tools.pages.marked import insert

    run = read_results(COMMITTED / "headline_135m.json")
    fast = "paradecode-native/q4_1+prompt-lookup"

    def changed(engine, change):
        records = (change(r) if r.engine == engine else r for r in run.records)
        return replace(run, records=tuple(records))

    for other, message in (
        (changed(fast, lambda r: replace(r, token_ids=(*r.token_ids[:-1], 1))), "are equal"),
        (changed(fast, lambda r: replace(r, decode_seconds=r.decode_seconds / 4)), "cannot be"),
        (changed(fast, lambda r: replace(r, counts=None)), "counts its forwards"),
        (changed("llama-cpp/q4_1", lambda r: replace(r, other_load=1.0)), "nothing else runs"),
        (changed("llama-cpp/q4_1", lambda r: replace(r, token_ids=())), "measure llama-cpp"),
        (replace(run, machine=replace(run.machine, cores=99)), "one machine"),
    ):
        with pytest.raises(InvalidInput, match=message):
            headline([run, other])
    with pytest.raises(InvalidInput, match="headline:begin"):
        insert("no marks", "headline", "text")
