"""Calls of published MCP servers' tools can be forced. ``make clients`` fetches their schemas."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest

pytest.importorskip("llguidance")
from http_server import FakePool, Running

from paradecode.constraints.compile import Compiler
from paradecode.core.constraint import Constraint
from paradecode.core.errors import InvalidInput
from paradecode.models.catalogue import open_model
from repository import ROOT

SERVERS = json.loads((ROOT / "tools/serving/mcp_servers.json").read_text("utf-8"))
SCHEMAS = Path(os.environ.get("PARADECODE_MCP", ROOT / "build/mcp")) / "schemas.json"
IGNORED = "x-paradecode-ignored"
MOST = 4000
"""The most tokens of a call that random choices write. A schema without an end exceeds it."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SCHEMAS.exists(), reason="needs the schemas: make clients"),
]


class Writer:
    """Writes texts that a constraint allows, from random tokens of the default model.

    Half of the choices prefer tokens that close something. Without that, texts would be as long as
    the constraint allows.
    """

    def __init__(self) -> None:
        model = open_model()
        self.tokenizer, size = model.tokenizer, model.config.vocab_size
        self.ends = model.config.eos_tokens
        self.compiler = Compiler(model.tokenizer, size, self.ends)
        closing = {'"', "}", "]", '"}', '"]', "}}", "]}", '"}}'}
        self.closing = np.zeros(size, bool)
        self.closing[[i for i in range(size) if model.tokenizer.token(i) in closing]] = True
        self.closing[[*self.ends]] = True

    def write(self, constraint: Constraint, seed: int) -> str:
        matcher, random = constraint.follow(self.ends), np.random.default_rng(seed)
        path: list[int] = []
        while not matcher.complete(path):
            assert len(path) < MOST, self.tokenizer.decode(path)[:2000]
            allowed = matcher.mask(path)
            assert allowed is not None
            closing = allowed & self.closing
            prefer = closing.any() and random.random() < 0.5
            token = int(random.choice(np.flatnonzero(closing if prefer else allowed)))
            if token in self.ends:
                break
            path.append(token)
        return self.tokenizer.decode(path)


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer()


@pytest.fixture(scope="module")
def counts() -> Iterator[dict[str, Counter[str]]]:
    """Count what becomes of each package's tools, and print the table."""
    found: dict[str, Counter[str]] = {}
    yield found
    kinds = ("whole", "dropped", "refused")
    rows = [(name, *(count[kind] for kind in kinds)) for name, count in sorted(found.items())]
    rows.append(("all", *(sum(row[at] for row in rows) for at in (1, 2, 3))))
    print("", "| server | enforced whole | with dropped keywords | refused |", "|---|---|---|---|",
          *("| " + " | ".join(map(str, row)) + " |" for row in rows), sep="\n")  # fmt: skip


def fetched() -> dict[str, dict[str, Any]]:
    if not SCHEMAS.exists():
        return {}
    return {row["package"]: row for row in json.loads(SCHEMAS.read_text("utf-8"))}


@pytest.mark.parametrize("package", fetched())
def test_calls_of_a_published_server(
    package: str, server: Running, writer: Writer, counts: dict[str, Counter[str]]
) -> None:
    count = counts.setdefault(package, Counter())
    for tool in fetched()[package]["tools"]:
        function = {"name": tool["name"], "description": "It.", "parameters": tool["schema"]}
        answer = server.chat(
            tools=[{"type": "function", "function": function}], tool_choice="required"
        )
        assert answer.status_code == 200, answer.text
        pool: FakePool = server.pool
        schema = pool.seen[-1].constraint.value
        dropped = [one for one in answer.headers.get(IGNORED, "").split(", ") if one]
        try:
            constraint = writer.compiler.compile({"type": "json_schema", "value": schema})
        except InvalidInput as error:
            count["refused"] += 1
            print(f"refused: {package} {tool['name']}: {error}")
            continue
        count["dropped" if dropped else "whole"] += 1
        if dropped:
            print(f"dropped: {package} {tool['name']}: {', '.join(dropped)}")
        for seed in range(3):
            call = json.loads(writer.write(constraint, seed))
            assert call["name"] == tool["name"]
            jsonschema.validate(call, schema, jsonschema.Draft202012Validator)
            if not dropped:
                jsonschema.validate(call["arguments"], tool["schema"])
    assert not count["refused"]


def test_the_list_names_what_was_fetched() -> None:
    named = {row["package"]: (row["version"], row["licence"], row["tools"]) for row in SERVERS}
    found = {
        name: (row["version"], row["licence"], len(row["tools"])) for name, row in fetched().items()
    }
    assert found == named
    assert sum(len(row["tools"]) for row in fetched().values()) >= 200
