"""What a chat template writes as single tokens: the marks between turns, which no user may write.

A conversation whose messages are placeholders shows them. What a token means follows from this use,
and not from the flags that a file gives it.
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
"""How a token of the vocabulary reads that is no word."""

Render = Callable[[Sequence[Mapping[str, Any]], bool], "str | None"]


@dataclass(frozen=True)
class Marks:
    """Tokens that a template writes.

    Attributes:
        closed: texts of tokens that no message of anybody contains as tokens: control tokens, and
            those between the turns.
        written: text -> id of all tokens that are looked for in a text and that the template
            writes, the control tokens, too.
        merged: texts of marks between turns that are merged of words; no message may contain one.
        end: id of the token that ends an answer, or None.
        plain: the words between two turns that no token marks, or None.
    """

    closed: frozenset[str]
    written: Mapping[str, int]
    merged: frozenset[str]
    end: int | None
    plain: str | None

    def barred(self, role: str) -> Collection[str]:
        """Texts of tokens that are text in messages of this role.

        The model's own answers, and what the system asks of it, may name visible tokens.
        """
        return self.written if role in ("user", "tool") else self.closed


def find_marks(render: Render, source: str, tokenizer: Tokenizer) -> Marks:
    """The marks of a template.

    Args:
        render: gives the text of a conversation, with or without the beginning of an answer, or
            None.
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
    """What stands before each message that the text shows, with the role of the message before;
    and what stands behind the last one."""
    gaps, at, before = [], 0, ""
    for message in said:
        place = text.find(message["content"], at)
        if place >= 0:
            gaps.append((before, text[at:place]))
            at, before = place + len(message["content"]), message["role"]
    return gaps, text[at:]


def _end(behind: str, begin: str, prompt: str, marks: Mapping[str, int]) -> int | None:
    """The token that ends an answer: the text behind it begins with this token.

    A token that begins a turn is none. Such a one also begins a conversation or an answer, or
    stands nearest to the next message.

    Args:
        behind: what stands between an answer and the next message.
        begin, prompt: the beginning of a conversation, and that of an answer.
    """
    order = _in(behind, marks)
    if not order or not behind.lstrip().startswith(order[0]) or order[0] in prompt:
        return None
    opens = order[0] == order[-1] if len(order) > 1 else order[0] in begin
    return None if opens else marks[order[0]]


def _in(text: str, marks: Collection[str]) -> list[str]:
    """The marks in a text, in order."""
    return [piece for piece in split(text, marks) if piece in marks]


def split(text: str, needles: Collection[str]) -> list[str]:
    """Cut ``text`` at every needle, longest needle first; the needles are kept."""
    if not needles:
        return [text] if text else []
    pattern = "|".join(re.escape(needle) for needle in sorted(needles, key=len, reverse=True))
    return [piece for piece in re.split(f"({pattern})", text) if piece]
