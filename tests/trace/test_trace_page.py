"""The page as a document: self-contained, accessible, and closed to the model's text."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from trace_samples import HOSTILE, denoised, drafted, hostile

from paradecode.trace import page
from paradecode.trace.page import embedded


class Document(HTMLParser):
    """Elements with their attributes, and the text inside of each script and style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[tuple[dict[str, str | None], str]] = []
        self.title = ""
        self._inside = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self._inside = tag
        if tag in ("script", "style"):
            self.raw.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("script", "style"):
            attributes, before = self.raw[-1]
            self.raw[-1] = attributes, before + data
        elif self._inside == "title":
            self.title += data

    def the(self, identity: str) -> tuple[str, dict[str, str | None]]:
        (found,) = [element for element in self.elements if element[1].get("id") == identity]
        return found


@pytest.fixture(scope="module", params=[drafted, denoised, hostile])
def made(request: pytest.FixtureRequest) -> tuple[Any, str, Document]:
    trace = request.param()
    html = page(trace)
    return trace, html, Document(html)


def test_the_embedded_trace_reads_back(made: tuple[Any, str, Document]) -> None:
    trace, _, document = made
    (data,) = [text for attributes, text in document.raw if attributes.get("id") == "trace"]
    assert json.loads(data) == json.loads(json.dumps(trace))


def test_the_policy_allows_nothing_else(made: tuple[Any, str, Document]) -> None:
    _, _, document = made
    (policy,) = [
        attributes["content"]
        for tag, attributes in document.elements
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'")
    for kind, (_, text) in zip(("style", "script"), document.raw[::2], strict=True):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_nothing_is_fetched(made: tuple[Any, str, Document]) -> None:
    _, _, document = made
    for _, attributes in document.elements:
        assert not attributes.keys() & {"src", "href", "srcset", "style", "onclick", "onload"}
    style = document.raw[0][1]
    assert "url(" not in style
    assert "@import" not in style


def test_the_program_finds_its_elements() -> None:
    document = Document(page(drafted()))
    asked = set(re.findall(r'byId\("([a-z-]+)"\)', document.raw[-1][1]))
    assert len(asked) > 20
    assert asked <= {attributes.get("id") for _, attributes in document.elements}


def test_controls_have_names() -> None:
    document = Document(page(drafted()))
    controls = [(tag, a) for tag, a in document.elements if tag in ("button", "input")]
    assert len(controls) >= 8
    assert all(a.get("aria-label") or a.get("id") == "fit" for _, a in controls)
    for region in ("output", "tree", "canvas"):
        _, attributes = document.the(region)
        assert attributes.get("aria-label")
        assert attributes.get("tabindex") == "0"
    assert document.the("readout")[1].get("aria-live") == "polite"


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_leaves_the_data(text: str) -> None:
    data = embedded({"text": text})
    assert data.isascii()
    assert not re.search(r"[<>&\n\r]", data)
    assert json.loads(data) == {"text": text}
