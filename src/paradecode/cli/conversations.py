"""Files of conversations: JSONL of {id, group, turns, max_tokens}."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paradecode.cli.console import print_json
from paradecode.core.errors import InvalidInput, ParadecodeError
from paradecode.core.sampling import SamplingParams
from paradecode.report.records import completion_record

if TYPE_CHECKING:
    from paradecode.llm import LLM

MAX_LINE = 1 << 22


def read_conversations(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a prompts file, checked.

    Raises:
        InvalidInput: the file cannot be read, or a line is not a conversation.
    """
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("--prompts", str(path), f"give a readable file ({error})") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{path.name} line {number}"
        try:
            entry = json.loads(line) if len(line) <= MAX_LINE else None
        except (ValueError, RecursionError):
            entry = None
        turns = entry.get("turns") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not isinstance(turns, list) or not turns:
            raise InvalidInput(where, line, 'write {"id": ..., "turns": ["..."]}')
        if not all(isinstance(turn, str) for turn in turns):
            raise InvalidInput(f"{where} turns", turns, "give texts")
        if "max_tokens" in entry:
            SamplingParams.from_mapping({"max_tokens": entry["max_tokens"]})
        yield entry


def answer_turns(llm: LLM, conversation: dict[str, Any], params: dict[str, Any]) -> None:
    """Answer the turns one after the other; print a record as each finishes."""
    messages: list[dict[str, str]] = []
    settings = dict(params)
    if "max_tokens" in conversation:
        settings["max_tokens"] = conversation["max_tokens"]
    for turn, text in enumerate(conversation["turns"]):
        messages.append({"role": "user", "content": text})
        head = {"id": conversation.get("id"), "group": conversation.get("group"), "turn": turn}
        try:
            completion = llm.chat(messages, **settings)
        except ParadecodeError as error:
            print_json({**head, "error": str(error)}, line=True)
            return
        messages.append({"role": "assistant", "content": completion.text})
        print_json({**head, **completion_record(completion, llm)}, line=True)
