"""Find the texts that a chat template writes as single tokens, which no user may write.

Rendering a conversation of placeholders shows these marks between the turns. The meaning of a token
follows from its use there, and not from the flags that a file gives it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paradecode.models.tokenizer import Tokenizer

_MESSAGES = [
    {"role": role, "content": f"\ue000{index}\ue001"}
    for index, role in enumerate(("system", "user", "assistant", "user"))
]
_CONVERSATIONS = (_MESSAGES, _MESSAGES[1:], _MESSAGES[1:2])
"""Conversations, of which templates that know fewer roles take a later one."""
_MARK = re.compile(r"<\S*\w\S*>|\[\S*\w\S*\]")
"""The form of a token in the vocabulary that is not a word."""

Render = Callable[[Sequence[Mapping[str, Any]], bool], "str | None"]


@dataclass(frozen=True)
class Marks:
    """Tokens that a template writes.

    Attributes:
        closed: texts that never become tokens in any message: control tokens, and tokens between
            the turns.
        written: text -> id of all added tokens that the template writes, including control tokens.
        merged: texts of marks between turns that are several ordinary tokens; no message may
            contain one.
        end: id of the token that ends an answer, or None.
        plain: the words between two turns if no token marks them, or None.
    """

    closed: frozenset[str]
    written: Mapping[str, int]
    merged: frozenset[str]
    end: int | None
    plain: str | None

    def barred(self, role: str) -> Collection[str]:
        """Return the texts of tokens that stay text in messages of this role.

        The model's own answers and system messages may contain visible tokens.
        """
        return self.written if role in ("user", "tool") else self.closed


def find_marks(render: Render, source: str, tokenizer: Tokenizer) -> Marks:
    """Find the marks of a template.

    Args:
        render: returns the text of a conversation, with or without the beginning of an answer, or
            None if the template refuses it.
        source: the template.
    """
    tried = ((said, render(said, False)) for said in _CONVERSATIONS)
    said, turns = next(((s, text) for s, text in tried if text is not None), ([], ""))
    opened = (render(said, True) if said else None) or turns
    known = {text: index for text, index in tokenizer.added.items() if re.search(r"\w", text)}
    ending = {t: index for t, index in known.items() if index in tokenizer.eos_tokens}
    between = {text: index for text, index in known.items() if text in turns}
    closed = {**tokenizer.control, **ending, **between}
    everything = f"{source}{opened}"
    written = closed | {text: index for text, index in known.items() if text in everything}
    gaps, rest = _gaps(opened, said)
    behind = next((gap for before, gap in gaps if before == "assistant"), "")
    begin = (render(_MESSAGES[1:2], False) or "").partition(_MESSAGES[1]["content"])[0]
    end = _end(behind, begin, opened[len(turns) :] if opened.startswith(turns) else "", closed)
    ids = tokenizer.encode("".join(gap for _, gap in gaps), special=False)
    names = {tokenizer.token(index) for index in {*ids} - {*tokenizer.added.values()}}
    merged = frozenset(name for name in names if _MARK.fullmatch(name) and name in turns)
    marks = {*closed, *merged}
    inner = [gap for before, gap in gaps[1:] if before != "system" or re.search(r"\w", gap)]
    inner += [rest] if len(said) == 1 and rest else []
    plain = next((gap for gap in inner if not any(mark in gap for mark in marks)), None)
    return Marks(frozenset(closed), written, merged, end, plain)


def _gaps(text: str, said: Sequence[Mapping[str, str]]) -> tuple[list[tuple[str, str]], str]:
    """Return the text before each message, with the role of the previous message.

    The second result is the text after the last message.
    """
    gaps, at, before = [], 0, ""
    for message in said:
        place = text.find(message["content"], at)
        if place >= 0:
            gaps.append((before, text[at:place]))
            at, before = place + len(message["content"]), message["role"]
    return gaps, text[at:]


def _end(behind: str, begin: str, prompt: str, marks: Mapping[str, int]) -> int | None:
    """Return the token that ends an answer: the text after the answer begins with this token.

    A token that begins a turn does not count. Such a token also begins a conversation or an answer,
    or stands nearest to the next message.

    Args:
        behind: the text between an answer and the next message.
        begin, prompt: the beginning of a conversation, and the beginning of an answer.
    """
    order = _in(behind, marks)
    if not order or not behind.lstrip().startswith(order[0]) or order[0] in prompt:
        return None
    opens = order[0] == order[-1] if len(order) > 1 else order[0] in begin
    return None if opens else marks[order[0]]


def _in(text: str, marks: Collection[str]) -> list[str]:
    """Return the marks in a text, in order."""
    return [piece for piece in split(text, marks) if piece in marks]


def split(text: str, needles: Collection[str]) -> list[str]:
    """Split ``text`` at every needle, longest needle first; the needles are kept."""
    if not needles:
        return [text] if text else []
    pattern = "|".join(re.escape(needle) for needle in sorted(needles, key=len, reverse=True))
    return [piece for piece in re.split(f"({pattern})", text) if piece]
