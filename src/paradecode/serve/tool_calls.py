"""Find function calls in a streamed output, however it is cut into chunks.

A call is the JSON object ``{"name": ..., "arguments": ...}`` with the name of an offered function:
at the very start of an output, after another call, or between ``<tool_call>`` and ``</tool_call>``,
which Qwen's and Hermes' templates ask for. Text that may still become a call is held back, up to a
bound: the beginning of a call is short, and longer text is no call.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from typing import Any

OPEN, CLOSE = "<tool_call>", "</tool_call>"
HEAD = re.compile(r'\s*\{\s*"name"\s*:\s*"([a-zA-Z0-9_.-]{1,64})"\s*,\s*"arguments"\s*:')

MOST_HEAD = 256
"""The most characters of the beginning of a call, with white space before it."""

PIECE = 1 << 12
"""Characters that are read at once, so that the held text, which is searched again, stays short."""

Delta = dict[str, Any]
"""A change of a message: ``{"content": text}``, or ``{"tool_calls": [a part of one call]}``."""


class CallReader:
    """Finds the calls in one output.

    Args:
        names: names of the functions that may be called; if there are none, all is text.
        parallel: whether there may be several calls; if not, all but the first are left out.

    Attributes:
        calls: number of calls that were reported.
    """

    def __init__(self, names: Sequence[str], parallel: bool = True) -> None:
        self.calls, self._parallel = 0, parallel
        self._heads = [f'{{"name":"{name}","arguments":' for name in names]
        self._names = frozenset(names)
        self._held = ""
        self._read = self._beginning
        self._told, self._depth, self._in_text, self._escaped = True, 0, False, False

    def feed(self, text: str) -> list[Delta]:
        """The deltas that are certain after ``text``."""
        if not self._names:
            return _content(text)
        deltas: list[Delta] = []
        for start in range(0, len(text), PIECE):
            self._held += text[start : start + PIECE]
            while self._read(deltas):
                pass
        return deltas

    def finish(self) -> list[Delta]:
        """The deltas that were held back, at the end of the output."""
        held, self._held = self._held, ""
        between = self._read == self._beginning and self.calls and not held.strip()
        return [] if between or self._read == self._arguments else _content(held)

    # Each state takes what it can from the held text; True: something changed, read on.

    def _beginning(self, deltas: list[Delta]) -> bool:
        """Read held text at the start of the output, or after a call; returns whether to go on
        reading."""
        seen = self._held.lstrip()
        if len(self._held) - len(seen) > MOST_HEAD:
            self._read = self._text
            return True
        if self.calls and seen.startswith(CLOSE):
            self._held = seen[len(CLOSE) :]
            return True
        tags = (OPEN, CLOSE) if self.calls else (OPEN,)
        if any(tag.startswith(seen) for tag in tags):  # The empty text included.
            return False
        starts_call = seen.startswith(("{", OPEN))
        self._read = self._head if starts_call else self._text
        if starts_call:
            self._held = seen
        return True

    def _text(self, deltas: list[Delta]) -> bool:
        place = self._held.find(OPEN)
        if place < 0:
            kept = _overlap(self._held)
            deltas += _content(self._held[: len(self._held) - kept])
            self._held = self._held[len(self._held) - kept :]
            return False
        deltas += _content(self._held[:place])
        self._held = self._held[place:]
        self._read = self._head
        return True

    def _head(self, deltas: list[Delta]) -> bool:
        """Read held text that may be the start of a call; it begins with a tag or a brace."""
        tag = OPEN if self._held.startswith(OPEN) else ""
        end = len(tag) + MOST_HEAD
        found = HEAD.match(self._held, len(tag), end)
        if found and found[1] in self._names:
            self._held = self._held[found.end() :]
            self._begin(deltas, found[1])
            return True
        compact = re.sub(r"\s+", "", self._held[len(tag) : end])
        open_ = any(len(compact) < len(h) and h.startswith(compact) for h in self._heads)
        if open_ and len(self._held) < end:
            return False
        skipped = tag or self._held[:1]
        deltas += _content(skipped)
        self._held = self._held[len(skipped) :]
        self._read = self._text
        return True

    def _begin(self, deltas: list[Delta], name: str) -> None:
        """Report a call, unless it is one too many, and begin to read its arguments."""
        self._told = self._parallel or self.calls == 0
        if self._told:
            function = {"name": name, "arguments": ""}
            call = {"id": f"call_{secrets.token_hex(12)}", "type": "function", "function": function}
            deltas.append({"tool_calls": [{"index": self.calls, **call}]})
            self.calls += 1
        self._depth, self._in_text, self._escaped = 0, False, False
        self._read = self._arguments

    def _arguments(self, deltas: list[Delta]) -> bool:
        """Read the arguments of a call, up to the brace that closes the call itself."""
        taken: list[str] = []
        for place, letter in enumerate(self._held):
            if self._in_text:
                self._in_text = self._escaped or letter != '"'
                self._escaped = letter == "\\" and not self._escaped
            elif letter == '"':
                self._in_text = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]" and self._depth == 0:
                self._give(deltas, taken)
                self._held = self._held[place + 1 :]
                self._read = self._beginning
                return True
            elif letter in "}]":
                self._depth -= 1
            if self._depth or self._in_text or not letter.isspace():
                taken.append(letter)
        self._give(deltas, taken)
        self._held = ""
        return False

    def _give(self, deltas: list[Delta], letters: list[str]) -> None:
        if letters and self._told:
            part = {"index": self.calls - 1, "function": {"arguments": "".join(letters)}}
            deltas.append({"tool_calls": [part]})


def message(deltas: Sequence[Delta]) -> dict[str, Any]:
    """The message that the deltas of a whole output add up to."""
    content = "".join(delta.get("content", "") for delta in deltas)
    calls: list[dict[str, Any]] = []
    for part in (part for delta in deltas for part in delta.get("tool_calls", ())):
        if part["index"] == len(calls):
            function = dict(part["function"])
            calls.append({"id": part["id"], "type": "function", "function": function})
        else:
            calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    made: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        made |= {"content": content or None, "tool_calls": calls}
    return made


def _content(text: str) -> list[Delta]:
    return [{"content": text}] if text else []


def _overlap(text: str) -> int:
    """Number of characters at the end of ``text`` that may be the beginning of a tag."""
    return next((size for size in range(len(OPEN) - 1, 0, -1) if text.endswith(OPEN[:size])), 0)
