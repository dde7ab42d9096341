"""Read files of prompts, and make the token ids of a conversation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paradecode.core.checks import listed, text, text_in, whole
from paradecode.core.errors import InvalidInput

if TYPE_CHECKING:
    from paradecode.llm import LLM

MAX_TOKENS = 1 << 16
MOST_BYTES = 1 << 28
CHECKS = {
    "id": text(MOST_BYTES, 1),
    "group": text(MOST_BYTES, 1),
    "turns": listed(text(MOST_BYTES), MAX_TOKENS),
    "max_tokens": whole(1, MAX_TOKENS),
    "answers": listed(text(MOST_BYTES, 1), MAX_TOKENS),
    "system": text(MOST_BYTES),
}
Messages = list[dict[str, str]]


def read_text(file: Path, field: str = "prompts") -> str:
    """Return the text of a file; raises InvalidInput that names ``field``."""
    return text_in(file, field, MOST_BYTES)


def json_lines(name: str, lines: str) -> Iterator[tuple[str, Any]]:
    """Yield (place for errors, value) for each line of JSONL that is not empty.

    Only line feeds end a line: JSON texts may contain other line ends of Unicode.
    """
    for number, line in enumerate(lines.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{name} line {number}"
        try:
            yield where, json.loads(line)
        except (ValueError, RecursionError):
            raise InvalidInput(where, line, "write one JSON object a line") from None


def encoder(llm: LLM) -> Callable[[Messages], list[int]]:
    """Return a function from messages to token ids, in the model's chat format if it has one."""
    if llm.chat_template is not None:
        return llm.chat_tokens
    return lambda messages: llm.tokenizer.encode("\n\n".join(m["content"] for m in messages))
