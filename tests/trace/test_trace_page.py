"""The page is self-contained and accessible, and the model's text cannot break out of it."""

import base64
import hashlib
import json
import re
from typing import Any

import pytest
from trace_samples import HOSTILE, denoised, drafted, hostile

from elements import Elements
from paradecode.trace import page
from paradecode.trace.page import embedded


@pytest.fixture(scope="module", params=[drafted, denoised, hostile])
def made(request: pytest.FixtureRequest) -> tuple[Any, str, Elements]:
    trace = request.param()
    html = page(trace)
    return trace, html, Elements(html)


def test_the_embedded_trace_reads_back(made: tuple[Any, str, Elements]) -> None:
    trace, _, document = made
    (data,) = [text for attributes, text in document.raw() if attributes.get("id") == "trace"]
    assert json.loads(data) == json.loads(json.dumps(trace))


def test_the_policy_allows_nothing_else(made: tuple[Any, str, Elements]) -> None:
    _, _, document = made
    (policy,) = [
        attributes["content"]
        for tag, attributes, _ in document.found
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none'")
    for kind, (_, text) in zip(("style", "script"), document.raw()[::2], strict=True):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_nothing_is_fetched(made: tuple[Any, str, Elements]) -> None:
    _, _, document = made
    for _, attributes, _ in document.found:
        assert not attributes.keys() & {"src", "href", "srcset", "style", "onclick", "onload"}
    style = document.raw()[0][1]
    assert "url(" not in style
    assert "@import" not in style


def test_the_program_finds_its_elements() -> None:
    document = Elements(page(drafted()))
    asked = set(re.findall(r'byId\("([a-z-]+)"\)', document.raw()[-1][1]))
    assert len(asked) > 20
    assert asked <= {attributes.get("id") for _, attributes, _ in document.found}


def test_controls_have_names() -> None:
    document = Elements(page(drafted()))
    controls = [(tag, a) for tag, a, _ in document.found if tag in ("button", "input")]
    assert len(controls) >= 8
    assert all(a.get("aria-label") or a.get("id") == "fit" for _, a in controls)
    for region in ("output", "tree", "canvas"):
        (attributes,) = [a for _, a, _ in document.found if a.get("id") == region]
        assert attributes.get("aria-label")
        assert attributes.get("tabindex") == "0"
    assert [a["aria-live"] for _, a, _ in document.found if a.get("id") == "readout"] == ["polite"]


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_leaves_the_data(text: str) -> None:
    data = embedded({"text": text})
    assert data.isascii()
    assert not re.search(r"[<>&\n\r]", data)
    assert json.loads(data) == {"text": text}
