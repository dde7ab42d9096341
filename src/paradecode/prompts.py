"""The prompts of a benchmark: a checked JSONL file, and the token ids that every engine gets."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from paradecode.core.checks import listed, text, whole
from paradecode.core.errors import InvalidInput

if TYPE_CHECKING:
    from paradecode.llm import LLM

DEFAULT_FILE = Path(__file__).with_name("prompts.jsonl")
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


@dataclass(frozen=True)
class Conversation:
    """One conversation: the user's turns, and how long an answer may get.

    Attributes:
        answers: right last answers (see ``answers.is_right``); empty where none can be checked.
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
    """The input of one measurement. The turns of one conversation have the same ``prompt``."""

    id: str
    prompt: str
    group: str
    token_ids: tuple[int, ...]
    max_tokens: int


Grouped = TypeVar("Grouped", Conversation, Item)


def load_prompts(path: Path | None = None) -> list[Conversation]:
    """Read a file of prompts; None is the package's own.

    Raises:
        InvalidInput: naming the line and the field that is wrong.
    """
    file = path or DEFAULT_FILE
    lines = json_lines(file.name, read_text(file))
    return all_different([prompt_from(where, entry) for where, entry in lines], str(file))


def all_different(prompts: list[Conversation], source: str) -> list[Conversation]:
    """The prompts; raises InvalidInput if there are none, or two have the same id."""
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise InvalidInput("prompts id", prompt.id, "give each prompt an id of its own")
        seen.add(prompt.id)
    if not prompts:
        raise InvalidInput("prompts", source, "give at least one prompt")
    return prompts


def read_text(file: Path, field: str = "prompts") -> str:
    """The text of a file; raises InvalidInput that names ``field``."""
    try:
        if file.stat().st_size > MOST_BYTES:
            raise InvalidInput(field, str(file), f"give a file below {MOST_BYTES >> 20} MiB")
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(field, str(file), f"give a readable file ({error})") from None


def json_lines(name: str, lines: str) -> Iterator[tuple[str, Any]]:
    """(place for errors, value) of each line of JSONL that is not empty.

    Only line feeds end a line: JSON may have the other line ends of Unicode inside its texts.
    """
    for number, line in enumerate(lines.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{name} line {number}"
        try:
            yield where, json.loads(line)
        except (ValueError, RecursionError):
            raise InvalidInput(where, line, "write one JSON object a line") from None


def fingerprint(entries: Sequence[Conversation | Item]) -> str:
    """A digest by which a run recognises its inputs."""
    return hashlib.sha256(json.dumps(list(map(asdict, entries))).encode()).hexdigest()[:16]


def by_turns(entries: Sequence[Grouped]) -> list[Grouped]:
    """The first of each group, then the second of each, and so on, as in real traffic."""
    seen = Counter[str]()
    ranked: list[tuple[int, Grouped]] = []
    for entry in entries:
        ranked.append((seen[entry.group], entry))
        seen[entry.group] += 1
    return [entry for _, entry in sorted(ranked, key=lambda one: one[0])]


def first_of_each_group(prompts: Sequence[Conversation], count: int | None) -> list[Conversation]:
    """A small sample with prompts of every group; None takes all."""
    taken = Counter[str]()
    chosen = []
    for prompt in prompts:
        taken[prompt.group] += 1
        if count is None or taken[prompt.group] <= count:
            chosen.append(prompt)
    return chosen


def encoder(llm: LLM) -> Callable[[Messages], list[int]]:
    """Messages -> token ids, in the model's chat format where it has one."""
    if llm.chat_template is not None:
        return llm.chat_tokens
    return lambda messages: llm.tokenizer.encode("\n\n".join(m["content"] for m in messages))


def first_turns(
    prompts: Sequence[Conversation],
    encode: Callable[[Messages], Sequence[int]],
    max_tokens: int | None = None,
) -> list[Item]:
    """Token ids of the first turn of each conversation; arguments are those of
    :func:`make_items`."""
    first = [replace(prompt, turns=prompt.turns[:1]) for prompt in prompts]
    return make_items(first, encode, lambda messages, limit: "", max_tokens)


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
        for turn, said in enumerate(prompt.turns):
            messages = [*messages, {"role": "user", "content": said}]
            name = prompt.id if len(prompt.turns) == 1 else f"{prompt.id}/{turn + 1}"
            items.append(Item(name, prompt.id, prompt.group, tuple(encode(messages)), limit))
            if turn + 1 < len(prompt.turns):
                reply = answer(messages, limit)
                messages = [*messages, {"role": "assistant", "content": reply}]
    return items


def prompt_from(where: str, entry: Any) -> Conversation:
    """A prompt from an object with ``id``, ``group``, ``turns`` and perhaps ``max_tokens``,
    ``answers`` and ``system``. Raises InvalidInput, which names ``where``."""
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
