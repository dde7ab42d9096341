"""Find tool calls and reasoning in a streamed output, however it is cut into chunks.

A call is the JSON object ``{"name": ..., "arguments": ...}`` with the name of an offered function.
It stands at the start of an output, after another call, or after a mark such as ``<tool_call>``,
``[TOOL_CALLS]`` or the fence of a code block. Other forms are read by :mod:`.dresses`. Text that
may still become a call is held back, up to a bound, because the beginning of a call is short. An
output that begins with ``<think>`` has reasoning before its text.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from paradecode.serve import dresses
from paradecode.serve.dresses import CLOSERS, OPENERS, OPENING, OpenCall

HEAD = re.compile(
    r'\s*(\[?)\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?("function"\s*:\s*\{\s*)?'
    r'"(?:name|tool_name)"\s*:\s*"([a-zA-Z0-9_.-]{1,128})"\s*,\s*"(?:arguments|parameters)"\s*:'
)
THINK, THOUGHT = "<think>", "</think>"

MOST_HEAD = 256
"""The most characters of the beginning of a call, with white space before it."""

MOST_BLOCK = 1 << 16
"""The most characters of a call that is read as a whole."""

PIECE = 1 << 12
"""Number of characters that are read at once.

The held text is searched again, so it stays short.
"""

Delta = dict[str, Any]
"""A change of a message in one of three forms.

It is ``{"content": text}``, ``{"reasoning_content": text}``, or ``{"tool_calls": [a part of one
call]}``. A part has either ``function`` with ``arguments``, or ``custom`` with ``input``.
"""

INPUT = re.compile(r'\s*\{\s*"input"\s*:\s*"')
LETTERS = re.compile(r'(?:[^"\\]|\\u[0-9a-fA-F]{4}|\\["\\/bfnrt])*')
ESCAPE = 6
"""Number of characters of the longest escape in a JSON text."""


class InputReader:
    """Reads the text of a custom tool from the arguments ``{"input": "..."}``, as they arrive."""

    def __init__(self) -> None:
        self._held, self._half, self._inside, self._over = "", "", False, False
        self._raw = False

    def feed(self, arguments: str) -> str:
        """Return the text that is certain after more of the arguments."""
        self._held += arguments
        if not self._inside:
            head = None if self._raw else INPUT.match(self._held)
            if head is None:
                self._raw = self._raw or len(self._held) > MOST_HEAD
                return self.finish() if self._raw else ""
            self._inside, self._held = True, self._held[head.end() :]
        text = self._half
        while not self._over:
            found = LETTERS.match(self._held)
            assert found is not None
            text += json.loads(f'"{found[0]}"', strict=False)
            self._held = self._held[found.end() :]
            self._over = self._held.startswith('"')
            if len(self._held) < ESCAPE:
                break
            if not self._over:  # A model may write a backslash that begins no escape.
                text, self._held = text + "\\", self._held[1:]
        halved = "\ud800" <= text[-1:] < "\udc00" and not self._over
        self._half = text[-1:] if halved else ""
        return _paired(text[: len(text) - halved])

    def finish(self) -> str:
        """Return the rest at the end of the call: all of the arguments, if they have no input."""
        rest, self._held = "" if self._over else _paired(self._half + self._held), ""
        return rest


def _paired(text: str) -> str:
    """Return a text in which halves of a character are joined, or replaced if they are alone."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class CallReader:
    """Finds the tool calls in one output.

    Args:
        functions: names of the functions that may be called, as keys if the schemas of their
            arguments are known. Without functions, all is text.
        parallel: whether several calls are allowed. If not, all calls after the first are left out.
        thoughts: whether reasoning is separated from the text.
        begun: returns whether the output begins inside of reasoning; called at the first text.
        custom: names of the functions that are custom tools, whose calls have a text.

    Attributes:
        calls: number of calls that were reported so far.
    """

    def __init__(
        self,
        functions: Collection[str] | Mapping[str, Any],
        parallel: bool = True,
        thoughts: bool = False,
        begun: Callable[[], bool] = bool,
        custom: Collection[str] = (),
    ) -> None:
        self.calls, self._parallel = 0, parallel
        of_each = functions if isinstance(functions, Mapping) else dict.fromkeys(functions)
        self._names: Mapping[str, Any] = of_each
        self._held, self._begun, self._custom = "", begun, custom
        self._input: InputReader | None = None
        self._read = self._before if thoughts else self._beginning
        self._told, self._depth, self._in_text, self._escaped = True, 0, False, False
        self._over, self._alone = False, False
        self._closers: tuple[str, ...] = (CLOSERS["<tool_call>"],)
        self._block: OpenCall | None = None
        self._then = self._thoughts  # The state after empty lines.

    def feed(self, text: str) -> list[Delta]:
        """Return the deltas that are certain after ``text``."""
        if not self._names and self._read == self._beginning:
            return _content(text)
        deltas: list[Delta] = []
        for start in range(0, len(text), PIECE):
            self._held += text[start : start + PIECE]
            while self._held and self._read(deltas):
                pass
        return deltas

    def finish(self) -> list[Delta]:
        """Return the deltas that were held back, at the end of the output."""
        deltas: list[Delta] = []
        if self._block is not None and self._read == self._whole:
            found = self._block.read(self._held, self._names)
            self._calls(deltas, found)
            self._held = "" if found else self._block.text + self._held
        held, self._held = self._held, ""
        between = self._read == self._beginning and self.calls and not held.strip()
        if self._read == self._arguments:
            self._end_input(deltas)
        if between or self._read == self._arguments:
            return deltas
        return deltas + ([{"reasoning_content": held}] if held and self._read == self._thoughts
                         else _content(held))  # fmt: skip

    # Each state consumes what it can from the held text. True means that something changed, so that
    # reading continues.

    def _before(self, deltas: list[Delta]) -> bool:
        """Read the start of an output that may begin with reasoning."""
        if self._begun():
            self._read, self._then = self._lines, self._thoughts
            return True
        seen = self._held.lstrip()
        if THINK.startswith(seen) and len(self._held) <= MOST_HEAD:  # Also if ``seen`` is empty.
            return False
        thinks = seen.startswith(THINK)
        self._read = self._lines if thinks else self._beginning
        if thinks:
            self._held, self._then = seen[len(THINK) :], self._thoughts
        elif not self._names:
            deltas += _content(self._held)
            self._held = ""
        return True

    def _thoughts(self, deltas: list[Delta]) -> bool:
        before, end, after = self._held.partition(THOUGHT)
        kept = 0 if end else _overlap(before, (THOUGHT,))
        text, self._held = before[: len(before) - kept], after or before[len(before) - kept :]
        if text:
            deltas.append({"reasoning_content": text})
        if not end:
            return False
        self._read, self._then = self._lines, self._beginning if self._names else self._plain
        return True

    def _lines(self, deltas: list[Delta]) -> bool:
        """Skip empty lines."""
        self._held = self._held.lstrip("\n")
        self._read = self._then if self._held else self._read
        return bool(self._held)

    def _plain(self, deltas: list[Delta]) -> bool:
        deltas += _content(self._held)
        self._held = ""
        return False

    def _beginning(self, deltas: list[Delta]) -> bool:
        """Read held text at the start of the output, or after a call. Return whether to read on."""
        seen = self._held.lstrip()
        if len(self._held) - len(seen) > MOST_HEAD:
            self._read = self._text
            return True
        closers = self._closers if self.calls else ()
        for closer in closers:
            if seen.startswith(closer):
                self._held = seen[len(closer) :]
                return True
        if any(tag.startswith(seen) for tag in (*OPENERS, *closers)):  # Also if ``seen`` is empty.
            return False
        marked = seen[0] in "{[" or OPENING.match(seen) or dresses.begun(seen, "", self._names)
        starts_call = marked or dresses.may_begin(seen[:MOST_HEAD], self._names, bare=True)
        self._read = self._head if starts_call else self._text
        if starts_call:
            self._held = seen
        return True

    def _text(self, deltas: list[Delta]) -> bool:
        found = OPENING.search(self._held)
        if found is None:
            kept = _overlap(self._held, OPENERS)
            deltas += _content(self._held[: len(self._held) - kept])
            self._held = self._held[len(self._held) - kept :]
            return False
        deltas += _content(self._held[: found.start()])
        self._held = self._held[found.start() :]
        self._read = self._head
        return True

    def _head(self, deltas: list[Delta]) -> bool:
        """Read held text that begins with a mark or a call, and may be the start of a call."""
        marked = OPENING.match(self._held)
        tag = marked[0] if marked else ""
        end = len(tag) + MOST_HEAD
        found = HEAD.match(self._held, len(tag), end)
        if found and found[3] in self._names:
            self._closers = tuple(filter(None, (
                "}" if found[2] else "", "," if found[1] else ";", "]" if found[1] else "",
                CLOSERS.get(tag, CLOSERS["<tool_call>"]),
            )))  # fmt: skip
            self._held = self._held[found.end() :]
            self._begin(deltas, found[3])
            return True
        block = dresses.begun(self._held[len(tag) : end], tag, self._names)
        if block is not None:
            self._held = self._held[len(tag) + block.start :]
            self._closers = (CLOSERS.get(tag, CLOSERS["<tool_call>"]),)
            if block.streams:
                self._begin(deltas, block.name, alone=True)
            else:
                self._block, self._read = block, self._whole
            return True
        # A mark at the end of the held text may be the beginning of a longer mark.
        longer = any(o != self._held and o.startswith(self._held) for o in OPENERS)
        rest = self._held[len(tag) : end]
        if longer or (len(self._held) < end and dresses.may_begin(rest, self._names, bare=not tag)):
            return False
        skipped = tag or self._held[:1]
        deltas += _content(skipped)
        self._held = self._held[len(skipped) :]
        self._read = self._text
        return True

    def _begin(self, deltas: list[Delta], name: str, alone: bool = False) -> None:
        """Report a call, unless only one is allowed, and begin to read its arguments.

        With ``alone``, no brace follows the arguments to close the call.
        """
        self._told = self._parallel or self.calls == 0
        if self._told:
            kind, given = ("custom", "input") if name in self._custom else ("function", "arguments")
            self._input = InputReader() if kind == "custom" else None
            named = {kind: {"name": name, given: ""}}
            call = {"id": f"call_{secrets.token_hex(12)}", "type": kind, **named}
            deltas.append({"tool_calls": [{"index": self.calls, **call}]})
            self.calls += 1
        self._depth, self._in_text, self._escaped = 0, False, False
        self._over, self._alone = False, alone
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
                return self._ended(deltas, taken, place)
            elif letter in "}]":
                self._depth -= 1
            elif letter == "," and self._depth == 0:
                self._over = True  # Mistral's models write an id after the arguments.
            if not self._over and (self._depth or self._in_text or not letter.isspace()):
                taken.append(letter)
            if self._alone and letter in "}]" and self._depth == 0 and not self._in_text:
                return self._ended(deltas, taken, place)
        self._give(deltas, taken)
        self._held = ""
        return False

    def _ended(self, deltas: list[Delta], taken: list[str], place: int) -> bool:
        self._give(deltas, taken)
        self._end_input(deltas)
        self._held = self._held[place + 1 :]
        self._read = self._beginning
        return True

    def _give(self, deltas: list[Delta], letters: list[str]) -> None:
        text = "".join(letters)
        if self._told and self._input is not None:
            self._told_input(deltas, self._input.feed(text))
        elif text and self._told:
            part = {"index": self.calls - 1, "function": {"arguments": text}}
            deltas.append({"tool_calls": [part]})

    def _end_input(self, deltas: list[Delta]) -> None:
        if self._told and self._input is not None:
            self._told_input(deltas, self._input.finish())
            self._input = None

    def _told_input(self, deltas: list[Delta], text: str) -> None:
        if text:
            deltas.append({"tool_calls": [{"index": self.calls - 1, "custom": {"input": text}}]})

    def _whole(self, deltas: list[Delta]) -> bool:
        """Read a call whose arguments are known only when it has ended."""
        assert self._block is not None
        end = self._block.end(self._held)
        if end is None and len(self._held) <= MOST_BLOCK:
            return False
        found = [] if end is None else self._block.read(self._held[:end], self._names)
        if not found:
            deltas += _content(self._block.text)
            self._block, self._read = None, self._text
            return True
        self._calls(deltas, found)
        self._held = self._held[end:]
        self._block = None
        return True

    def _calls(self, deltas: list[Delta], found: Sequence[tuple[str, str]]) -> None:
        for name, arguments in found:
            self._begin(deltas, name)
            self._give(deltas, [arguments])
            self._end_input(deltas)
        self._read = self._beginning


def message(deltas: Sequence[Delta]) -> dict[str, Any]:
    """Return the message that all deltas of an output add up to."""
    content = "".join(delta.get("content", "") for delta in deltas)
    thoughts = "".join(delta.get("reasoning_content", "") for delta in deltas)
    calls: list[dict[str, Any]] = []
    for part in (part for delta in deltas for part in delta.get("tool_calls", ())):
        kind, given = ("custom", "input") if "custom" in part else ("function", "arguments")
        if part["index"] == len(calls):
            calls.append({"id": part["id"], "type": kind, kind: dict(part[kind])})
        else:
            calls[part["index"]][kind][given] += part[kind][given]
    made: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if thoughts:
        made["reasoning_content"] = thoughts
    if calls:
        made |= {"content": content or None, "tool_calls": calls}
    return made


def _content(text: str) -> list[Delta]:
    return [{"content": text}] if text else []


def _overlap(text: str, tags: Sequence[str]) -> int:
    """Return how many characters at the end of ``text`` may be the beginning of a tag."""
    longest = max(map(len, tags)) - 1
    starts = (size for size in range(min(longest, len(text)), 0, -1))
    return next((n for n in starts if any(tag.startswith(text[-n:]) for tag in tags)), 0)
