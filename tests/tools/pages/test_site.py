"""The site builds strictly, its links lead somewhere, and it loads nothing from other servers."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from repository import ROOT

pytest.importorskip("material")

LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("source", "src")}


class Page(HTMLParser):
    """The links, anchors and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and given.get("rel") not in ("canonical", "prev", "next"):
            self.loaded.append(given["href"])
        self.loaded += [value for name, value in given.items() if (tag, name) in LOADED]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    run = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return folder


def pages(site: Path) -> Iterator[tuple[Path, Page]]:
    for path in sorted(site.rglob("*.html")):
        if path.name != "404.html":  # Its links are relative to a server's root.
            yield path, Page(path.read_text("utf-8"))


@pytest.mark.wide
def test_every_link_leads_somewhere(site: Path) -> None:
    found = {path.resolve(): page for path, page in pages(site)}
    assert len(found) > 50
    for path, page in found.items():
        for link in [*page.links, *page.loaded]:
            if re.match(r"(https|mailto):", link):
                continue
            name, _, anchor = unquote(link).partition("#")
            target = (path.parent / name).resolve() if name else path
            target = target / "index.html" if target.is_dir() else target
            assert target.is_file(), f"{path.name} links to {link}"
            if anchor and target.suffix == ".html":
                assert anchor in found[target].anchors, f"{path.name} links to {link}"


@pytest.mark.wide
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path, page in pages(site):
        remote = [name for name in page.loaded if "//" in name]
        assert not remote, f"{path.name} loads {remote}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import )[\"']?(?:https?:)?//", style.read_text("utf-8"))


@pytest.mark.wide
def test_every_page_can_be_reached(site: Path) -> None:
    found = {path.resolve(): page for path, page in pages(site)}
    start = (site / "index.html").resolve()
    reached, left = {start}, [start]
    while left:
        path = left.pop()
        for link in found[path].links:
            target = (path.parent / link.partition("#")[0]).resolve()
            if target in found and target not in reached:
                reached.add(target)
                left.append(target)
    assert reached == found.keys()


@pytest.mark.wide
def test_methods_have_pages_with_what_users_ask(site: Path) -> None:
    text = (site / "methods" / "prompt-lookup.html").read_text("utf-8")
    for heading in ("Idea", "When to use it", "Settings", "Measured"):
        assert f">{heading}<" in text
