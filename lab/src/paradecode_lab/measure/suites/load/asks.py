"""Chooses the requests of a load run: first turns of prompts in a seeded order, with due times."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paradecode.core.errors import InvalidInput
from paradecode.prompts import read_text
from paradecode_lab.measure.prompts import Conversation, load_prompts
from paradecode_lab.measure.suites.load.plan import OfferedLoad

TEXT_TOKENS = 128
"""``max_tokens`` of prompts from a plain text file."""


def read_asks(path: Path | None = None, max_tokens: int | None = None) -> list[Conversation]:
    """Read the prompts of the package (None), of a JSONL file, or of a text file with one per line.

    Only the first turn of each conversation is kept.

    Raises:
        InvalidInput: a file or a line cannot be read; the error names it.
    """
    asks = load_prompts(path) if path is None or path.suffix == ".jsonl" else _lines(path)
    limit = max_tokens or max(ask.max_tokens for ask in asks)
    return [replace(a, turns=a.turns[:1], max_tokens=min(a.max_tokens, limit)) for a in asks]


def draw(asks: Sequence[Conversation], count: int, seed: str) -> list[Conversation]:
    """Draw ``count`` prompts in a random order.

    No prompt is repeated before all were drawn once.
    """
    order = random.Random(seed)
    drawn: list[Conversation] = []
    while len(drawn) < count:
        drawn += order.sample(asks, len(asks))
    return drawn[:count]


def arrivals(load: OfferedLoad, kind: str, count: int, seed: str) -> list[float]:
    """Return when the requests of an open loop are due: seconds from the start, ascending."""
    assert load.rate is not None
    if kind == "constant":
        return [number / load.rate for number in range(count)]
    clock, order = 0.0, random.Random(seed)
    due = []
    for _ in range(count):
        due.append(clock)
        clock += order.expovariate(load.rate)
    return due


def _lines(path: Path) -> list[Conversation]:
    lines = enumerate(read_text(path, "--prompts").split("\n"), 1)
    asks = [
        Conversation(f"line-{n}", path.stem, (line.strip(),), TEXT_TOKENS)
        for n, line in lines
        if line.strip()
    ]
    if not asks:
        raise InvalidInput("--prompts", str(path), "give at least one prompt")
    return asks
