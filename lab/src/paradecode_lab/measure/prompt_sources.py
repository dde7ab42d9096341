"""Reads prompts of many formats: this package's own, other benchmarks', plain texts, and data sets.

A line of JSONL (or an entry of a JSON list, or a row of a hub dataset) may have the format

- of this package: ``id``, ``group``, ``turns``, ``max_tokens``, ``answers``;
- of Spec-Bench, MT-Bench or SPEED-Bench: ``question_id``, ``category``, ``turns``;
- of ShareGPT: ``conversations`` of ``from`` and ``value``, of which the user's turns are taken;
- of OpenAI: ``messages`` of ``role`` and ``content``;
- of question sets: ``prompt``, ``question``, ``instruction`` or ``text``, and perhaps ``answer``.
  If the answer contains ``####``, the answer is what follows it (GSM8K).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.prompts import json_lines, read_text
from paradecode_lab.measure.prompts import Conversation, all_different, load_prompts, prompt_from

HUB = "hub:"
TEXTS = (".txt", ".md")
MOST_PROMPTS = 100_000
USERS = ("human", "user")
SINGLE = ("prompt", "question", "instruction", "text")


def read_prompts(source: str | None = None) -> list[Conversation]:
    """Read all prompts of a source.

    Args:
        source: a ``.jsonl`` or ``.json`` file; a ``.txt`` or ``.md`` file, which is one prompt, or
            several between lines of ``---``; a folder of such texts; or
            ``hub:owner/name[:config[:split]]``, a dataset that the package ``datasets`` gets. None
            reads the prompts that come with the package.

    Raises:
        InvalidInput: naming the line and the field that is wrong, or what is missing.
    """
    if source is None:
        return load_prompts()
    if source.startswith(HUB):
        prompts = list(_hub(source))
    elif Path(source).is_dir():
        files = sorted(f for f in Path(source).iterdir() if f.suffix in TEXTS and f.is_file())
        prompts = [prompt for file in files for prompt in _texts(file)]
    elif Path(source).suffix in TEXTS:
        prompts = list(_texts(Path(source)))
    else:
        prompts = list(_entries(Path(source)))
    return all_different(prompts, source)


def parse_entry(where: str, entry: Any, number: int, group: str) -> Conversation | None:
    """Build a prompt from an object in any of the formats; None for a conversation without a user.

    Args:
        where: the place of the object, which errors name.
        number: number of the object, which replaces a missing id.
        group: the group of prompts if the object names no category.
    """
    if not isinstance(entry, Mapping):
        raise InvalidInput(where, entry, 'write {"id": ..., "group": ..., "turns": ["..."]}')
    own = dict(entry)
    identity = own.get("id", own.get("question_id", own.get("task_id")))
    own["id"] = f"{group}-{number}" if identity in (None, "") else str(identity)
    own["group"] = own.get("group") or own.get("category") or group
    spoken = own.get("conversations", own.get("messages"))
    if "turns" not in own and spoken is not None:
        own["system"], own["turns"] = _said(where, spoken)
        if not own["turns"]:
            return None
    if "turns" not in own:
        found = next((own[name] for name in SINGLE if isinstance(own.get(name), str)), None)
        if found is None:
            fix = f"give turns, conversations, messages or one of {', '.join(SINGLE)}"
            raise InvalidInput(where, sorted(map(str, own)), fix)
        own["turns"] = [found]
    if "answers" not in own and isinstance(own.get("answer"), str):
        answer = own["answer"].rpartition("####")[2].strip()
        own["answers"] = [answer] if answer else []
    return prompt_from(where, own)


def _said(where: str, spoken: Any) -> tuple[str, list[str]]:
    """Return the system message and the user's turns of a conversation."""
    if not isinstance(spoken, list) or not all(isinstance(one, Mapping) for one in spoken):
        raise InvalidInput(f"{where} conversations", spoken, "give a list of messages")
    system, turns = "", []
    for one in spoken:
        who, text = one.get("from", one.get("role")), one.get("value", one.get("content"))
        if not isinstance(text, str):
            raise InvalidInput(f"{where} conversations", text, "give texts")
        if who == "system":
            system = text
        elif who in USERS:
            turns.append(text)
    return system, turns


def _entries(file: Path) -> Iterator[Conversation]:
    text = read_text(file)
    if text.lstrip().startswith("["):
        try:
            listed = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"prompts {file.name}", text[:40], f"not JSON: {error}") from None
        named = ((f"{file.name} entry {n}", entry) for n, entry in enumerate(listed, 1))
        yield from _parsed(named, file.stem)
        return
    yield from _parsed(json_lines(file.name, text), file.stem)


def _parsed(entries: Iterable[tuple[str, Any]], group: str) -> Iterator[Conversation]:
    for number, (where, entry) in enumerate(entries, 1):
        if number > MOST_PROMPTS:
            raise InvalidInput("prompts", number, f"give at most {MOST_PROMPTS}")
        prompt = parse_entry(where, entry, number, group)
        if prompt is not None:
            yield prompt


def _texts(file: Path) -> Iterator[Conversation]:
    parts: list[list[str]] = [[]]
    for line in read_text(file).split("\n"):
        if line.strip() == "---":
            parts.append([])
        else:
            parts[-1].append(line)
    texts = ["\n".join(part).strip() for part in parts]
    for number, text in enumerate((text for text in texts if text), 1):
        entry = {"id": f"{file.stem}-{number}", "group": file.stem, "turns": [text]}
        yield prompt_from(f"{file.name} part {number}", entry)


def _hub(source: str) -> Iterator[Conversation]:
    """Read the rows of a hub dataset. The package ``datasets`` is imported only here."""
    name, config, split = [*source.removeprefix(HUB).split(":"), "", "", ""][:3]
    fix = "install `datasets` and have a network, or download the file and name it"
    try:
        datasets = sys.modules.get("datasets") or import_module("datasets")
    except ImportError:
        raise InvalidInput("prompts", source, fix) from None
    try:
        rows = datasets.load_dataset(name, config or None, split=split or "test")
    # The machine may be offline, or there is no such dataset, config or split.
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        raise InvalidInput("prompts", source, f"{fix} ({reason})") from None
    stem = name.rpartition("/")[2]
    yield from _parsed(((f"{name} row {n}", row) for n, row in enumerate(rows, 1)), stem)
