"""Provide prompts that train heads, from task templates and files, without any measured prompt."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from paradecode_lab.measure.prompt_sources import read_prompts
from paradecode_lab.measure.prompts import Conversation

PARTS = Path(__file__).with_name("tasks.json")
RUN = 8
"""A prompt that shares this many words in a row with a measured prompt is not used for training."""
FOLLOWED = 0.25
"""Share of the tasks that have a second turn."""


def task_prompts(count: int, seed: int) -> list[Conversation]:
    """Make conversations in which users ask for common things.

    Equal arguments give equal conversations.
    """
    parts: dict[str, list[str]] = json.loads(PARTS.read_text("utf-8"))
    random = np.random.default_rng(seed)

    def one(kind: str) -> str:
        return parts[kind][random.integers(len(parts[kind]))]

    def filled(text: str) -> str:
        while (done := re.sub(r"(?<!{){(\w+)}(?!})", lambda found: one(found[1]), text)) != text:
            text = done
        return text.replace("{{", "{").replace("}}", "}")

    made = []
    for number in range(count):
        turns = (one("task"), one("follow"))[: 1 + (random.random() < FOLLOWED)]
        texts = tuple(filled(turn) for turn in turns)
        made.append(Conversation(f"task-{number}", "task", texts, 1 << 16))
    return made


class MeasuredPrompts:
    """The prompts that are used for measuring, to keep them out of training.

    Args:
        sources: files of prompts that ``read_prompts`` reads, beside the package's own.
    """

    def __init__(self, sources: Sequence[str] = ()) -> None:
        self._runs: set[tuple[str, ...]] = set()
        for source in (None, *sources):
            for prompt in read_prompts(source):
                for text in (*prompt.turns, prompt.system):
                    self._runs.update(_runs(text))

    def has(self, texts: Iterable[str]) -> bool:
        """Decide whether a text shares RUN words in a row with a measured prompt.

        Texts shorter than RUN words must equal a short measured prompt.
        """
        return any(not self._runs.isdisjoint(_runs(text)) for text in texts)


def _runs(text: str) -> Iterable[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    if 0 < len(words) < RUN:
        return [tuple(words)]
    return (tuple(words[i : i + RUN]) for i in range(len(words) - RUN + 1))
