"""Read tool calls that are not one JSON object with a name, as some model families write them.

``<function=NAME>`` with ``<parameter=KEY>`` is Qwen3-Coder's form, and with JSON inside it is
Llama's. ``NAME<arg_key>`` is GLM's, ``NAME[ARGS]{...}`` is Mistral's, ``[NAME(key=value)]`` is
Llama 4's, and calls in a fenced block are Gemma's.
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
"""Mark before tool calls -> the mark after them."""
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
"""Without white space: text before a function's name -> the texts that may follow the name."""
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
    """A tool call that has begun in the output and may not have ended.

    Attributes:
        name: the function's name.
        start: number of characters before the text that :meth:`end` and :meth:`read` get.
        text: these characters, with the mark before them.
        closer: text that ends the call; empty if a closing bracket ends it.
        streams: whether the arguments follow as JSON.
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
        """Return the index after the end of the call, or None if the end has not arrived.

        Each character is looked at once.
        """
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
        """Return the names and arguments of the calls in a whole block, or an empty list.

        Args:
            functions: name of each function that may be called -> the schema of its arguments.
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
    """Return the call that begins a text after ``tag``, or None.

    Calls in JSON are not found here.
    """
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
    """Return whether a text may grow into the beginning of a tool call.

    Args:
        bare: whether the text has no mark before it.
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
    """Return whether ``text`` is a prefix of a function's name followed by one of ``ends``."""
    found = re.match(r"[a-zA-Z0-9_.-]*", text)
    assert found is not None
    name, rest = found[0], text[found.end() :]
    if not rest:
        return any(one.startswith(name) for one in names)
    return name in names and any(end.startswith(rest) for end in ends)


def _written(text: str, names: Collection[str]) -> list[tuple[str, str]]:
    """Return calls that are written like calls in Python, with literal values as arguments."""
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
    """Return an unquoted argument's value: a string if the schema allows it, else parsed JSON."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "string" or (isinstance(kind, list) and "string" in kind):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
