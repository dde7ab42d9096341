"""The prompts of a benchmark: a JSONL file, checked, and the token ids every engine is given."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paradecode.core.errors import InvalidInput

DEFAULT_FILE = Path(__file__).with_name("prompts.jsonl")
MAX_TOKENS = 1 << 16
Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Conversation:
    """One conversation: the user's turns, and how long an answer may get.

    Attributes:
        answers: what the last answer may say to be right (see ``answers.is_right``); none where
            it cannot be checked.
        system: message before the first turn; empty for none.
    """

    id: str
    group: str
    turns: tuple[str, ...]
    max_tokens: int
    answers: tuple[str, ...] = ()
    system: str = ""


@dataclass(frozen=True)
class Item:
    """One measurement's input. The turns of one conversation have the same ``prompt``."""

    id: str
    prompt: str
    group: str
    token_ids: tuple[int, ...]
    max_tokens: int


def load_prompts(path: Path | None = None) -> list[Conversation]:
    """Read a prompts file; None is the package's own.

    Raises:
        InvalidInput: naming the line and the field that is wrong.
    """
    file = path or DEFAULT_FILE
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("prompts", str(file), f"give a readable file ({error})") from None
    prompts = [_prompt(f"{file.name} line {n}", s) for n, s in enumerate(lines, 1) if s.strip()]
    check_ids(prompts)
    if not prompts:
        raise InvalidInput("prompts", str(file), "give at least one prompt")
    return prompts


def check_ids(prompts: Sequence[Conversation]) -> None:
    """Raise InvalidInput if two prompts have the same id."""
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise InvalidInput("prompts id", prompt.id, "give each prompt an id of its own")
        seen.add(prompt.id)


def first_of_each_group(prompts: Sequence[Conversation], count: int) -> list[Conversation]:
    """A small sample that still touches every group."""
    taken: dict[str, int] = {}
    chosen = []
    for prompt in prompts:
        taken[prompt.group] = taken.get(prompt.group, 0) + 1
        if taken[prompt.group] <= count:
            chosen.append(prompt)
    return chosen


def make_items(
    prompts: Sequence[Conversation],
    encode: Callable[[Messages], Sequence[int]],
    answer: Callable[[Messages, int], str],
    max_tokens: int | None = None,
) -> list[Item]:
    """Token ids of every turn.

    Args:
        encode: messages -> token ids in the model's chat format.
        answer: what a reference decoder replies (messages, max_tokens); it fills the earlier turns
            of a conversation, so that all engines continue the same text.
        max_tokens: upper bound on the prompts' own.
    """
    items = []
    for prompt in prompts:
        limit = min(prompt.max_tokens, max_tokens or MAX_TOKENS)
        messages: Messages = []
        if prompt.system:
            messages = [{"role": "system", "content": prompt.system}]
        for turn, text in enumerate(prompt.turns):
            messages = [*messages, {"role": "user", "content": text}]
            name = prompt.id if len(prompt.turns) == 1 else f"{prompt.id}/{turn + 1}"
            items.append(Item(name, prompt.id, prompt.group, tuple(encode(messages)), limit))
            if turn + 1 < len(prompt.turns):
                reply = answer(messages, limit)
                messages = [*messages, {"role": "assistant", "content": reply}]
    return items


def _prompt(where: str, line: str) -> Conversation:
    try:
        entry: Any = json.loads(line)
    except (ValueError, RecursionError):
        entry = None
    if not isinstance(entry, dict):
        raise InvalidInput(where, line, 'write {"id": ..., "group": ..., "turns": ["..."]}')
    return prompt_from(where, entry)


def prompt_from(where: str, entry: Mapping[str, Any]) -> Conversation:
    """A prompt from an object with ``id``, ``group``, ``turns`` and perhaps ``max_tokens``,
    ``answers`` and ``system``; raises InvalidInput that says ``where``.
    """
    for name in ("id", "group"):
        if not isinstance(entry.get(name), str) or not entry[name]:
            raise InvalidInput(f"{where} {name}", entry.get(name), "give a text")
    turns, limit = entry.get("turns"), entry.get("max_tokens", 128)
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) for t in turns):
        raise InvalidInput(f"{where} turns", turns, "give a list of texts")
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_TOKENS:
        raise InvalidInput(f"{where} max_tokens", limit, f"give a number from 1 to {MAX_TOKENS}")
    answers, system = entry.get("answers", []), entry.get("system", "")
    if not isinstance(answers, list) or not all(isinstance(a, str) and a for a in answers):
        raise InvalidInput(f"{where} answers", answers, "give a list of texts")
    if not isinstance(system, str):
        raise InvalidInput(f"{where} system", system, "give a text")
    return Conversation(entry["id"], entry["group"], tuple(turns), limit, tuple(answers), system)
