"""Files of conversations: JSONL of {id, group, turns, max_tokens}."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from paradecode.cli.console import print_json
from paradecode.cli.records import completion_record
from paradecode.core.errors import InvalidInput, ParadecodeError
from paradecode.prompts import CHECKS, json_lines, read_text

if TYPE_CHECKING:
    from paradecode.llm import LLM

FIELD = "--prompts"


def read_conversations(path: Path) -> list[dict[str, Any]]:
    """The lines of a prompts file, checked; `id` and `group` may be anything, or left out.

    Raises:
        InvalidInput: the file cannot be read, has nothing in it, or a line is not a conversation.
    """
    found = list[dict[str, Any]]()
    for where, entry in json_lines(path.name, read_text(path, FIELD)):
        if not isinstance(entry, dict) or not entry.get("turns"):
            raise InvalidInput(where, entry, 'write {"id": ..., "turns": ["..."]}')
        for name in ("turns", "max_tokens"):
            if name in entry:
                CHECKS[name](f"{where} {name}", entry[name])
        found.append(entry)
    if not found:
        raise InvalidInput(FIELD, str(path), "give at least one conversation")
    return found


def answer_turns(llm: LLM, conversation: dict[str, Any], params: dict[str, Any]) -> bool:
    """Answer the turns one after the other; print a record as each finishes, or what failed.

    Returns:
        Whether all turns were answered. Turns behind a failed one are not tried.
    """
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
            return False
        messages.append({"role": "assistant", "content": completion.text})
        print_json({**head, **completion_record(completion, llm)}, line=True)
    return True
