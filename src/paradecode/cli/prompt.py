"""Read texts for commands: from an argument, or from standard input for the argument ``-``."""

from __future__ import annotations

import sys

from paradecode.core.errors import InvalidInput, reason

LONGEST_PROMPT = 1 << 22
"""The most characters of a prompt that are read."""

NEEDED = "give UTF-8 text, as argument or on standard input"


def read_prompt(field: str, given: str) -> str:
    """Return the text that an argument gives.

    Raises:
        InvalidInput: if the text is empty or not UTF-8, or if there is no standard input to read.
    """
    text = _standard_input(field) if given == "-" else given
    if not text.strip():
        source = "standard input" if given == "-" else "the prompt"
        raise InvalidInput(field, "", f"{source} has no text: give a question or a beginning")
    try:
        text.encode("utf-8")  # Fails for bytes that were no UTF-8.
    except UnicodeEncodeError:
        raise InvalidInput(field, given, NEEDED) from None
    return text


def _standard_input(field: str) -> str:
    if sys.stdin is None:
        raise InvalidInput(field, "-", "standard input is closed: give the text as an argument")
    try:
        return sys.stdin.read(LONGEST_PROMPT)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(field, "-", f"{NEEDED} ({reason(error)})") from None
