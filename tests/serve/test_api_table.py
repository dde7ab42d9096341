"""The server's tables know every parameter and type of item of the clients' packages."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("fastapi")

from paradecode.serve.errors import ApiError
from paradecode.serve.protocol.base import settle, validated
from repository import ROOT
from tools.pages.api_table_page import APIS, effect, text

LISTING = json.loads((ROOT / "tests/serve/clients/shapes.json").read_text("utf-8"))


def places(tree: dict[str, Any], above: str = "") -> Iterator[str]:
    for name, below in tree.items():
        yield above + name
        yield from places(below, above + name)


@pytest.mark.parametrize("api", APIS)
def test_every_parameter_is_honoured_or_ignored_or_refused(api: str) -> None:
    found = {place: effect(APIS[api], place) for place in places(LISTING[api])}
    covered = [place for place, said in found.items() if said not in (None, "honoured")]
    unknown = [
        place
        for place, said in found.items()
        if said is None and not any(place.startswith(above) for above in covered)
    ]
    assert unknown == []
    assert len(found) > 15


def test_an_unknown_parameter_is_noticed() -> None:
    for place in (".of_next_year", ".messages[user].of_next_year", ".tools[of_next_year]"):
        assert effect(APIS["messages"], place) is None


def test_the_table_and_the_reader_agree() -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    for name in {place.strip(".").partition("[")[0] for place in LISTING["messages"]}:
        said = effect(APIS["messages"], f".{name}")
        if said == "without effect":
            assert settle(validated(APIS["messages"], {**body, name: {"a": 1}})) == [name]
        elif said != "honoured":
            with pytest.raises(ApiError, match=name):
                settle(validated(APIS["messages"], {**body, name: {"a": 1}}))


def test_the_page_has_the_table() -> None:
    assert text() in (ROOT / "docs/agents.md").read_text("utf-8")
