"""Read files of conversations, and answer them. Each line is {id, group, turns, max_tokens}."""

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
    """Read and check the lines of a file of prompts.

    `id` and `group` may have any value, or may be left out.

    Raises:
        InvalidInput: if the file cannot be read or is empty, or if a line is not a conversation.
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
    """Answer the turns one after the other, and print a record after each turn, or its error.

    Returns:
        Whether all turns were answered. Turns after a failed one are not tried.
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
