"""Tests the page in a real browser: replay, keyboard, hints, widths, themes and hostile text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from trace_samples import BLOCK, denoised, drafted, hostile, searched

from browser import Browser
from paradecode.trace import Trace, page
from paradecode.trace.record import CanvasStepRecord, DraftStepRecord

SAMPLES: dict[str, Callable[[], Trace]] = {
    "drafted": drafted, "denoised": denoised, "hostile": hostile, "searched": searched,
}  # fmt: skip
STATES = "[...document.querySelectorAll('#canvas .cell')].map(cell => cell.className)"
SHOWN = """[...document.querySelectorAll('#output > .t:not(.off)')]
    .map(span => span.textContent.replaceAll('\u23ce\\n', '\\n')).join('')"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    for name, make in SAMPLES.items():
        (folder / f"{name}.html").write_text(page(make()), "utf-8")
    return folder


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390, 320])
@pytest.mark.parametrize("name", SAMPLES)
def test_it_loads_alone_and_fits(browser, folder, name, width, dark):
    browser.open(folder / f"{name}.html", "#3", width, dark)
    assert browser.complaints() == []
    assert {address.split(":")[0] for address in browser.requests()} <= {"file", "about"}
    assert browser.run("document.documentElement.scrollWidth") == width
    assert browser.run(PLACE).startswith("3 / ")
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(20, 23, 27)" if dark else "rgb(251, 251, 250)")


def test_the_text_grows_by_what_each_forward_committed(browser: Browser, folder: Path) -> None:
    trace = drafted()
    browser.open(folder / "drafted.html", "#0")
    text = ""
    assert browser.run(SHOWN) == ""
    for step in trace["steps"]:
        browser.press("ArrowRight")
        text += "".join(trace["pieces"][str(t)] for t in cast(DraftStepRecord, step)["tokens"])
        assert browser.run(SHOWN) == text
    browser.press("ArrowRight")  # Nothing comes after the end.
    assert browser.run(SHOWN) == text
    for key, place in (("ArrowLeft", "5 / 6"), ("Home", "0 / 6"), ("End", "6 / 6")):
        browser.press(key)
        assert browser.run(PLACE) == place


def test_what_was_drafted_and_what_was_rejected(browser: Browser, folder: Path) -> None:
    browser.open(folder / "drafted.html", "#2")
    assert browser.run("[...document.querySelectorAll('.t.drafted:not(.off)')].length") == 2
    assert browser.run("document.querySelector('.ghost').textContent") == " on it"
    neighbours = "[...document.querySelectorAll('.ghost')].map(g => g.nextSibling.textContent)"
    assert browser.run(neighbours) == [" upon"]
    words = "[...document.querySelectorAll('#tree .KIND .word')].map(word => word.textContent)"
    assert browser.run(words.replace("KIND", "drafted")) == ["·cat", "·sat"]
    assert browser.run(words.replace("KIND", "own")) == ["·upon"]
    assert browser.run(words.replace(".KIND", ".node.cut")) == ["·on", "·it"]


def test_the_branches_of_a_search(browser: Browser, folder: Path) -> None:
    """Each branch is shown once, after the branch that it continues.

    The branches of the answer are filled, and form the top row.
    """
    browser.open(folder / "searched.html")
    branches = searched()["branches"]
    words = "[...document.querySelectorAll('#branches KIND .word')].map(word => word.textContent)"
    kept = browser.run(words.replace("KIND", ".kept"))
    assert kept == ["The·cat·sat·upon", "the·mat."]
    assert len(browser.run(words.replace("KIND", ".cut"))) == len(branches) - len(kept)
    assert "⟨202E⟩" in browser.run(words.replace("KIND", ".cut"))[0]
    boxes = browser.run(
        "[...document.querySelectorAll('#branches rect')].map(r => [r.x, r.y, r.width, r.height]"
        ".map(v => v.baseVal.value))"
    )
    root, *places = boxes
    for place, branch in zip(places, branches, strict=True):
        before = root if branch["after"] is None else places[branch["after"]]
        assert place[0] > before[0] + before[2]
        assert (place[1] == root[1]) == branch["chosen"]
    for index, (x, y, width, height) in enumerate(places):
        for ox, oy, own, high in places[:index]:
            assert x + width <= ox or ox + own <= x or y + height <= oy or oy + high <= y
    notes = browser.run(words.replace("KIND", "").replace(".word", ".note"))
    assert (notes[0], notes[4]) == ("0.750 · 4 tokens · stop", "0 tokens · cancelled")
    assert browser.run("document.getElementById('search-figures').textContent") == (
        "5 branches, 18 tokens"
    )
    browser.run("document.getElementById('branches').focus()")
    browser.press("ArrowRight")
    browser.press("ArrowRight")
    assert "0.750" in browser.run("document.getElementById('tip').textContent")
    browser.open(folder / "drafted.html")
    assert browser.run("document.getElementById('search').hidden")


@pytest.mark.parametrize("step", range(1, 6))
def test_the_tree_has_every_node_once(browser: Browser, folder: Path, step: int) -> None:
    record = cast(DraftStepRecord, drafted()["steps"][step - 1])
    browser.open(folder / "drafted.html", f"#{step}")
    nodes = browser.run("document.querySelectorAll('#tree .node').length")
    added = len(record["tokens"]) - len(record["tree"]["accepted"])
    assert nodes == 1 + len(record["tree"]["tokens"]) + added
    boxes = """[...document.querySelectorAll('#tree rect')]
        .map(r => r.getAttribute('x') + ' ' + r.getAttribute('y'))"""
    assert len(set(browser.run(boxes))) == nodes


def test_the_canvas_shows_masks_proposals_and_commits(browser: Browser, folder: Path) -> None:
    trace = denoised()
    browser.open(folder / "denoised.html", "#0")
    committed = set(trace["preset"]["positions"])
    seen_again = 0
    for step in cast("list[CanvasStepRecord]", trace["steps"]):
        browser.press("ArrowRight")
        committed -= set(step["remasked"])
        committed |= set(step["committed"]["positions"])
        states = browser.run(
            "[...document.querySelectorAll('#canvas .cell')].map(c => c.className)"
        )
        assert {i for i, state in enumerate(states) if "committed" in state} == committed
        now = {i for i, state in enumerate(states) if "now" in state}
        assert now == set(step["committed"]["positions"])
        proposed = {i for i, state in enumerate(states) if "provisional" in state}
        assert proposed == set(step["provisional"]["positions"])
        seen_again += sum("remasked" in state for state in states)
        open_block = browser.run("document.querySelector('.block.open h3').textContent")
        assert open_block.endswith(f"positions {step['block'][0]} to {step['block'][1] - 1}")
    assert seen_again > 0
    assert browser.run("document.querySelectorAll('.block').length") == trace["canvas"] // BLOCK
    assert browser.run(SHOWN) == "".join(
        token["text"] or trace["pieces"][str(token["id"])] for token in trace["tokens"]
    )


def test_a_sliding_window_is_marked(browser: Browser, folder: Path) -> None:
    trace = denoised()
    for start, step in enumerate(cast("list[CanvasStepRecord]", trace["steps"])):
        step["block"] = (start, start + 20)
    (folder / "sliding.html").write_text(page(trace), "utf-8")
    browser.open(folder / "sliding.html", "#4")
    assert browser.run("document.querySelectorAll('.block').length") == 1
    states = browser.run(STATES)
    assert [at for at, state in enumerate(states) if "window" in state] == list(range(3, 23))


@pytest.mark.parametrize(("name", "place", "said"), [
    ("drafted", "#output > .t", "probability 90"),
    ("drafted", "#tree .node.cut", "estimate, given its parent: 50"),
    ("drafted", "#chart .hit", "1 token committed"),
    ("denoised", "#canvas .cell.provisional", "proposed with confidence"),
    ("denoised", "#canvas .cell.committed", "confidence"),
    ("denoised", "#output > .t.f0", "confidence"),
])  # fmt: skip
def test_hints_under_the_mouse(browser, folder, name, place, said):
    browser.open(folder / f"{name}.html", "#2")
    assert browser.run("document.querySelector('#tip').hidden")
    browser.point_at(place)
    assert said in browser.run("document.querySelector('#tip').textContent")
    box = browser.run("(() => { const r = document.querySelector('#tip').getBoundingClientRect();"
                      "return [r.left, r.right, r.top, r.bottom]; })()")  # fmt: skip
    assert 0 <= box[0] < box[1] <= 1280
    assert 0 <= box[2] < box[3] <= 900


@pytest.mark.parametrize(
    ("name", "region"), [("drafted", "output"), ("drafted", "tree"), ("denoised", "canvas")]
)
def test_hints_from_the_keyboard(browser: Browser, folder: Path, name: str, region: str) -> None:
    browser.open(folder / f"{name}.html", "#3")
    browser.run(f"document.querySelector('#{region}').focus()")
    hints = []
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        browser.press(key)
        assert browser.run("document.activeElement.getAttribute('aria-describedby')") == "tip"
        hints.append(browser.run("document.querySelector('#tip').textContent"))
    assert hints[0] == hints[2] != hints[1]
    # The arrow keys moved between hints, and did not move the replay.
    assert browser.run(PLACE).startswith("3 / ")


PLAY = "document.querySelector('#play').getAttribute('aria-label')"
PLACE = "document.querySelector('#place').value"


@pytest.mark.parametrize("name", ["drafted", "denoised"])
def test_playing_starts_anew_and_stops(browser: Browser, folder: Path, name: str) -> None:
    browser.open(folder / f"{name}.html")
    whole = browser.run(PLACE)
    browser.press(" ")
    assert browser.run(PLAY) == "Pause"
    assert browser.run(PLACE).startswith("0 / ")
    browser.press(" ")
    assert browser.run(PLAY) == "Play"
    browser.press("End")
    browser.press("ArrowLeft")
    browser.press(" ")
    ended = f"""new Promise(done => {{ const look = () =>
        {PLAY} === 'Play' ? done({PLACE}) : setTimeout(look, 20); look(); }})"""
    assert browser.run(ended) == whole


def test_zoom_and_theme_buttons(browser: Browser, folder: Path) -> None:
    browser.open(folder / "drafted.html", "#3")
    width = "document.querySelector('#tree svg').getBoundingClientRect().width"
    before = browser.run(width)
    browser.run("document.querySelector('#larger').click()")
    assert browser.run(width) == pytest.approx(1.25 * before, rel=0.01)
    browser.run("document.querySelector('#theme').click()")
    paper = "getComputedStyle(document.body).backgroundColor"
    assert browser.run(paper) == "rgb(20, 23, 27)"
    assert browser.run("document.querySelector('#theme').getAttribute('aria-pressed')") == "true"


def test_a_wide_tree_scrolls_inside_of_its_box(browser: Browser, folder: Path) -> None:
    browser.open(folder / "hostile.html", "#5", 390)
    box = browser.run("document.querySelector('#tree').clientWidth")
    assert browser.run("document.querySelector('#tree').scrollWidth") > box
    browser.run("document.querySelector('#fit').click()")
    assert browser.run("document.querySelector('#tree').scrollWidth") <= box + 1


def test_hostile_text_stays_text(browser: Browser, folder: Path) -> None:
    trace: Any = hostile()
    browser.open(folder / "hostile.html")
    assert browser.run("document.title") == f"{trace['decoder']} on {trace['model']}"
    assert browser.run("document.querySelectorAll('script').length") == 2
    assert browser.run("document.querySelectorAll('main img, main script, main b').length") == 0
    assert browser.run("document.querySelectorAll('#output > .t').length") == 4000
    text = browser.run(SHOWN)
    assert "</script><script>document.title='owned'</script>" in text
    assert "⟨202E⟩right to left" in text
    assert not set(text) & {"\u202e", "\u2066", "\x1b", "\x00"}
    browser.run("document.querySelector('#slider').focus()")
    for key in ("Home", "ArrowRight", "End"):
        browser.press(key)
    assert browser.complaints() == []
