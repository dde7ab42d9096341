"""Forms of a call that are not one JSON object with a name: what other families' templates write.

``<function=NAME>`` with ``<parameter=KEY>`` is Qwen3-Coder's, with JSON inside Llama's;
``NAME<arg_key>`` is GLM's, ``NAME[ARGS]{...}`` Mistral's, ``[NAME(key=value)]`` Llama 4's, and
calls in a fenced block Gemma's.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

CLOSERS = {
    "<tool_call>": "</tool_call>", "<|tool_call|>": "<|/tool_call|>",
    "<|tool_call_start|>": "<|tool_call_end|>", "[TOOL_CALLS]": "[/TOOL_CALLS]",
    "<|python_tag|>": "<|eom_id|>", "```tool_code": "```", "```tool_call": "```",
    "```python": "```", "```json": "```", "```": "```",
}  # fmt: skip
"""Mark in front of calls -> the mark behind them."""
OPENERS = (*CLOSERS, "<function=")
OPENING = re.compile("|".join(re.escape(mark) for mark in CLOSERS) + "|(?=<function=)")
STARTS = {
    '{"name":"': ('","arguments":', '","parameters":'),
    '{"tool_name":"': ('","parameters":',),
    '{"type":"function","name":"': ('","arguments":', '","parameters":'),
    '{"type":"function","function":{"name":"': ('","arguments":', '","parameters":'),
    '{"function":{"name":"': ('","arguments":', '","parameters":'),
    "<function=": (">",),
}
"""Without white space: what stands in front of a function's name -> what stands behind it."""
NAME = r"([a-zA-Z0-9_.-]{1,128})"
TAGGED, ARGS = (
    re.compile(rf"\s*<function={NAME}>"),
    re.compile(rf"\s*{NAME}(?:\[ARGS\])?\s*(?=\{{)"),
)
KEYED, CALLED = re.compile(rf"\s*{NAME}\s*(?=<arg_key>)"), re.compile(rf"\s*(\[?)\s*{NAME}\s*\(")
PARAMETER = re.compile(r"<parameter=([^>\n]{1,256})>\n?(.*?)\n?</parameter>", re.DOTALL)
PAIR = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)


@dataclass
class OpenCall:
    """A call that has begun.

    Attributes:
        name: the function's name.
        start: characters in front of what :meth:`end` and :meth:`read` get.
        text: these characters, with the mark in front of them.
        closer: what ends it; empty for brackets.
        streams: whether its arguments follow as JSON.
    """

    name: str
    start: int
    text: str
    closer: str = ""
    streams: bool = False
    seen: int = 0
    open: str = ""
    quote: str = ""

    def end(self, held: str) -> int | None:
        """The place behind the call; None if it is not there yet. Each character is read once."""
        if self.closer:
            place = held.find(self.closer, max(0, self.seen - len(self.closer)))
            self.seen = len(held)
            return None if place < 0 else place + len(self.closer)
        while self.seen < len(held):
            letter = held[self.seen]
            self.seen += 1
            if self.quote:
                if letter == "\\":
                    self.seen += 1
                elif letter == self.quote:
                    self.quote = ""
            elif letter in "'\"":
                self.quote = letter
            elif letter in "([{":
                self.open += letter
            elif letter in ")]}":
                self.open = self.open[:-1]
                if not self.open:
                    return self.seen
        return None

    def read(self, held: str, functions: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Names and arguments of the calls in the whole block; nothing if it has none.

        Args:
            functions: name of each that may be called -> the schema of its arguments.
        """
        if not self.closer:
            return _written(held, functions)
        body = held.removesuffix(self.closer).strip()
        if body.startswith("{"):
            return [(self.name, body)]
        pattern = PAIR if self.closer == "</tool_call>" else PARAMETER
        if pattern.sub("", body).strip():
            return []
        own = (functions[self.name] or {}).get("properties")
        own = own if isinstance(own, dict) else {}
        pairs = [(key.strip(), text) for key, text in pattern.findall(body)]
        given = {key: _value(text, own.get(key)) for key, text in pairs}
        return [(self.name, json.dumps(given, ensure_ascii=False))]


def begun(text: str, tag: str, names: Collection[str]) -> OpenCall | None:
    """The call that a text behind a mark begins with, if it is of another form than JSON."""
    if (found := TAGGED.match(text)) and found[1] in names:
        return OpenCall(found[1], found.end(), tag + found[0], "</function>")
    if (found := ARGS.match(text)) and found[1] in names and tag in ("", "[TOOL_CALLS]"):
        return OpenCall(found[1], found.end(), tag + found[0], streams=True)
    if tag == "<tool_call>" and (found := KEYED.match(text)) and found[1] in names:
        return OpenCall(found[1], found.end(), tag + found[0], "</tool_call>")
    if (found := CALLED.match(text)) and found[2] in names and (tag or found[1]):
        return OpenCall(found[2], 0, tag)
    return None


def may_begin(text: str, names: Collection[str], bare: bool) -> bool:
    """Whether a text may become the beginning of a call.

    Args:
        bare: whether no mark is in front of it.
    """
    compact = re.sub(r"\s+", "", text)
    listed = compact.startswith("[")
    compact = compact[1:] if listed else compact
    if not compact:
        return True
    for start, ends in STARTS.items():
        if start.startswith(compact):
            return True
        if compact.startswith(start) and _named(compact[len(start) :], names, ends):
            return True
    ends = ("(",) if listed else ("[ARGS]{", "{") if bare else ("(", "<arg_key>", "[ARGS]{", "{")
    return _named(compact, names, ends)


def _named(text: str, names: Collection[str], ends: tuple[str, ...]) -> bool:
    """Whether a text is the beginning of a name with one of the ends."""
    found = re.match(r"[a-zA-Z0-9_.-]*", text)
    assert found is not None
    name, rest = found[0], text[found.end() :]
    if not rest:
        return any(one.startswith(name) for one in names)
    return name in names and any(end.startswith(rest) for end in ends)


def _written(text: str, names: Collection[str]) -> list[tuple[str, str]]:
    """Calls in Python's form, with arguments that are plain values."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        calls = tree.elts if isinstance(tree, (ast.List, ast.Tuple)) else [tree]
        made: list[tuple[str, str]] = []
        for call in calls:
            if not isinstance(call, ast.Call) or call.args or ast.unparse(call.func) not in names:
                return []
            given = {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}
            made.append((ast.unparse(call.func), json.dumps(given, ensure_ascii=False)))
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return []
    return made


def _value(text: str, schema: Any) -> Any:
    """The value of an argument that is written without quotes: a text if it may be one."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "string" or (isinstance(kind, list) and "string" in kind):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
