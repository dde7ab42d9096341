"""Calls of published MCP servers' tools can be forced. ``make clients`` fetches their schemas."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

llguidance = pytest.importorskip("llguidance")
pytest.importorskip("pydantic")

from paradecode.constraints.grammar import compile_grammar, grammar_of
from paradecode.core.errors import InvalidInput
from paradecode.serve.protocol.schemas import closed, enforceable
from paradecode.serve.protocol.tools import Tool, call_schema
from repository import ROOT

SCHEMAS = Path(os.environ.get("PARADECODE_MCP", ROOT / "build/mcp")) / "schemas.json"
FEW = 0.02
"""The largest share of the tools that may be refused."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SCHEMAS.exists(), reason="needs the schemas: make clients"),
]


def refusal(tool: dict[str, Any], tokenizer: Any) -> str | None:
    """Return why a call of the tool cannot be forced, or None."""
    function = {"name": "f", "parameters": tool["schema"]}
    schema = call_schema([Tool.model_validate({"type": "function", "function": function})])
    made = closed(enforceable(schema)[0])
    try:
        compile_grammar(grammar_of("json_schema", made), tokenizer, "schema")
    except InvalidInput as error:
        return f"{tool['name']}: {error}"
    return None


def test_the_tools_of_published_servers() -> None:
    tokenizer = llguidance.LLTokenizer("byte")
    tools = [tool for row in json.loads(SCHEMAS.read_text("utf-8")) for tool in row["tools"]]
    refused = [said for tool in tools if (said := refusal(tool, tokenizer))]
    print(f"{len(tools)} tools, {len(refused)} refused:", *refused, sep="\n")
    assert len(tools) >= 200
    assert len(refused) <= FEW * len(tools)
