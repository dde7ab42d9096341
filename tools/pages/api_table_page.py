"""Writes into a page what each API does with every parameter, from the classes of requests.

python -m tools.pages.api_table_page docs/agents.md
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from paradecode.serve.protocol import responses
from paradecode.serve.protocol.base import Body, Foreign
from paradecode.serve.protocol.chat import ChatRequest
from paradecode.serve.protocol.completions import CompletionRequest
from paradecode.serve.protocol.content import TEXT_PARTS, THOUGHTS
from paradecode.serve.protocol.messages import MessagesRequest, ReadBlock
from paradecode.serve.protocol.table import REFUSED, UNUSED, rules_of
from paradecode.serve.protocol.tools import ToolCall
from tools.pages.marked import put

APIS: dict[str, type[Body]] = {
    "chat/completions": ChatRequest,
    "completions": CompletionRequest,
    "responses": responses.ResponsesRequest,
    "messages": MessagesRequest,
}
EFFECTS = ("honoured", "without effect", "refused")
STEP = re.compile(r"\.?(\w*)(?:\[(\w+)\])?")


def effect(kind: type[Body], place: str) -> str | None:
    """Return what becomes of a field of a request.

    The result is ``honoured``, ``without effect``, or the reason why it is refused; None if no
    table names the field.

    Args:
        kind: the class that reads the request.
        place: path of the field, such as ``.messages[user].content[text].citations``.
    """
    found, rest = STEP.match(place), place
    assert found is not None
    (name, tag), rest = found.groups(), place[found.end() :]
    if kind is ReadBlock and name in ("source", "content"):
        return "honoured"
    fields = {field.alias or own: field for own, field in kind.model_fields.items()}
    if name not in fields:
        rules = rules_of(kind)
        return rules.refused.get(name) or ("without effect" if name in rules.unused else None)
    inner = [*bodies(fields[name].annotation)]
    if not inner:
        of_parts = any("content" in str(part) for part in (fields[name].metadata, fields[name]))
        return part_effect(tag, rest) if tag and of_parts else "honoured"
    marked = [one for one in inner if tag is None or tag in marks(one)]
    foreign = [one for one in inner if issubclass(one, Foreign)]
    if marked:
        return effect(marked[0], rest) if rest else "honoured"
    if tag in responses.OTHERS or (tag == "custom" and ToolCall in inner):
        return "honoured"  # The server reads it as a function.
    if not foreign or tag is None:
        return "honoured" if tag is None else None
    of_kind = rules_of(foreign[0])
    return of_kind.refused.get(tag) or ("without effect" if of_kind.knows(tag) else None)


def part_effect(tag: str, rest: str) -> str | None:
    """Return what becomes of a field in a part of a message's content."""
    if tag in REFUSED["Part"]:
        return REFUSED["Part"][tag]
    if tag in THOUGHTS or tag in UNUSED["Part"].split():
        return "without effect"
    if tag not in TEXT_PARTS:
        return None
    name = rest.lstrip(".").partition(".")[0].partition("[")[0]
    if not name or name == TEXT_PARTS[tag]:
        return "honoured"
    return "without effect" if name in UNUSED["Said"].split() else None


def bodies(kind: Any) -> Iterator[type[Body]]:
    """Yield the classes of objects that a type annotation allows."""
    if isinstance(kind, type) and issubclass(kind, Body):
        yield kind
    for part in get_args(kind):
        yield from bodies(part)


def marks(kind: type[Body]) -> set[str]:
    """Return the values of ``type`` or ``role`` that objects of a class may have."""
    found = [kind.model_fields[name] for name in ("type", "role") if name in kind.model_fields]
    return {word for field in found for word in words(field.annotation)}


def words(kind: Any) -> Iterator[str]:
    for part in get_args(kind):
        if isinstance(part, str):
            yield part
        else:
            yield from words(part)


def text() -> str:
    """Return Markdown: tables of fields, of all APIs and of each, and one of kinds of objects."""
    found = {f"`/v1/{api}`": fields(kind) for api, kind in APIS.items()}
    shared = [set.intersection(*sets) for sets in zip(*found.values(), strict=True)]
    lines = []
    for title, table in {"All of these": shared, **found}.items():
        lines += ["", f"**{title}**", "", "| | |", "|---|---|"]
        for kind, names, common in zip(EFFECTS, table, shared, strict=True):
            own = names if table is shared else names - common
            lines.append(f"| {kind} | {listed(sorted(own))} |")
    lines += ["", "**Kinds of objects**", "", "| | without effect | refused |", "|---|---|---|"]
    for name, where in FOREIGN.items():
        unused, refused = dict.fromkeys(UNUSED[name].split(), ""), REFUSED.get(name, {})
        lines.append(f"| {where} | {listed(unused.items())} | {listed(refused.items())} |")
    return "\n".join(lines[1:])


def fields(kind: type[Body]) -> list[set[tuple[str, str]]]:
    """Return for each of :data:`EFFECTS` the fields that have it, with the reason of a refusal."""
    own = {field.alias or name for name, field in kind.model_fields.items()}
    free = ({(name, "") for name in names} for names in (own, rules_of(kind).unused - own))
    return [*free, {*rules_of(kind).refused.items()}]


FOREIGN = {
    "ForeignTool": "`tools`", "ForeignChoice": "`tool_choice`",
    "ForeignItem": "`input` of responses", "ForeignBlock": "`content` of messages",
    "Part": "`content` elsewhere",
}  # fmt: skip


def listed(names: Iterable[tuple[str, str]]) -> str:
    """Return names, each reason once behind its names."""
    reasons: dict[str, list[str]] = {}
    for name, why in names:
        reasons.setdefault(why, []).append(f"`{name}`")
    return "; ".join(", ".join(own) + f" ({why})" * bool(why) for why, own in reasons.items())


if __name__ == "__main__":
    put(Path(sys.argv[1]), "api", text())
