"""Reads the prompts of a benchmark from JSONL, and makes the token ids that every engine gets."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from paradecode.core.errors import InvalidInput
from paradecode.prompts import CHECKS, MAX_TOKENS, Messages, json_lines, read_text

DEFAULT_FILE = Path(__file__).with_name("prompts.jsonl")


@dataclass(frozen=True)
class Conversation:
    """A conversation: the user's turns, and the limit for the length of each answer.

    Attributes:
        max_tokens: the most tokens of an answer.
        answers: right answers to the last turn (see ``answers.is_right``); empty where none can be
            checked.
        system: the system message before the first turn; empty for none.
    """

    id: str
    group: str
    turns: tuple[str, ...]
    max_tokens: int
    answers: tuple[str, ...] = ()
    system: str = ""


@dataclass(frozen=True)
class Item:
    """The input of one measurement.

    Attributes:
        prompt: id of the conversation, which is the same for all its turns.
        token_ids: the whole input, in the model's chat format.
        max_tokens: the most tokens of the answer.
    """

    id: str
    prompt: str
    group: str
    token_ids: tuple[int, ...]
    max_tokens: int


Grouped = TypeVar("Grouped", Conversation, Item)


def load_prompts(path: Path | None = None) -> list[Conversation]:
    """Read a file of prompts; None reads the file that comes with the package.

    Raises:
        InvalidInput: naming the line and the field that is wrong.
    """
    file = path or DEFAULT_FILE
    lines = json_lines(file.name, read_text(file))
    return all_different([prompt_from(where, entry) for where, entry in lines], str(file))


def all_different(prompts: list[Conversation], source: str) -> list[Conversation]:
    """Check that all prompts have different ids, and return them.

    Raises:
        InvalidInput: there is no prompt, or two prompts have the same id.
    """
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise InvalidInput("prompts id", prompt.id, "give each prompt an id of its own")
        seen.add(prompt.id)
    if not prompts:
        raise InvalidInput("prompts", source, "give at least one prompt")
    return prompts


def fingerprint(entries: Sequence[Conversation | Item]) -> str:
    """Return a digest of the inputs, by which a resumed run recognises them."""
    return hashlib.sha256(json.dumps(list(map(asdict, entries))).encode()).hexdigest()[:16]


def by_turns(entries: Sequence[Grouped]) -> list[Grouped]:
    """Sort so that groups take turns: the first entry of each group, then the second, and so on."""
    seen = Counter[str]()
    ranked: list[tuple[int, Grouped]] = []
    for entry in entries:
        ranked.append((seen[entry.group], entry))
        seen[entry.group] += 1
    return [entry for _, entry in sorted(ranked, key=lambda one: one[0])]


def first_of_each_group(prompts: Sequence[Conversation], count: int | None) -> list[Conversation]:
    """Return the first ``count`` prompts of each group; None returns all prompts."""
    taken = Counter[str]()
    chosen = []
    for prompt in prompts:
        taken[prompt.group] += 1
        if count is None or taken[prompt.group] <= count:
            chosen.append(prompt)
    return chosen


def first_turns(
    prompts: Sequence[Conversation],
    encode: Callable[[Messages], Sequence[int]],
    max_tokens: int | None = None,
) -> list[Item]:
    """Return the token ids of each conversation's first turn.

    The arguments are those of :func:`make_items`.
    """
    first = [replace(prompt, turns=prompt.turns[:1]) for prompt in prompts]
    return make_items(first, encode, lambda messages, limit: "", max_tokens)


def make_items(
    prompts: Sequence[Conversation],
    encode: Callable[[Messages], Sequence[int]],
    answer: Callable[[Messages, int], str],
    max_tokens: int | None = None,
) -> list[Item]:
    """Return the token ids of every turn, each with the conversation before it.

    Args:
        encode: messages -> token ids in the model's chat format.
        answer: (messages, max_tokens) -> the reply of a reference decoder. It answers the earlier
            turns of a conversation, so that all engines continue the same text.
        max_tokens: upper bound on the limits that the prompts have.
    """
    items = []
    for prompt in prompts:
        limit = min(prompt.max_tokens, max_tokens or MAX_TOKENS)
        messages: Messages = []
        if prompt.system:
            messages = [{"role": "system", "content": prompt.system}]
        for turn, said in enumerate(prompt.turns):
            messages = [*messages, {"role": "user", "content": said}]
            name = prompt.id if len(prompt.turns) == 1 else f"{prompt.id}/{turn + 1}"
            items.append(Item(name, prompt.id, prompt.group, tuple(encode(messages)), limit))
            if turn + 1 < len(prompt.turns):
                reply = answer(messages, limit)
                messages = [*messages, {"role": "assistant", "content": reply}]
    return items


def prompt_from(where: str, entry: Any) -> Conversation:
    """Build a prompt from an object, and check its fields.

    The fields are ``id``, ``group``, ``turns``, and optionally ``max_tokens``, ``answers`` and
    ``system``.

    Raises:
        InvalidInput: a field is wrong; the error names ``where``.
    """
    if not isinstance(entry, Mapping):
        raise InvalidInput(where, entry, 'write {"id": ..., "group": ..., "turns": ["..."]}')
    given = {"max_tokens": 128, "answers": [], "system": "", **entry}
    own: dict[str, Any] = {
        name: check(f"{where} {name}", given.get(name)) for name, check in CHECKS.items()
    }
    if not own["turns"]:
        raise InvalidInput(f"{where} turns", [], "give a list of texts")
    turns, answers = tuple(own.pop("turns")), tuple(own.pop("answers"))
    return Conversation(turns=turns, answers=answers, **own)
