"""The prompts of a certificate, as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paradecode.core.errors import InvalidInput
from paradecode.llm import LLM
from paradecode.measure.certificate.plan import Text
from paradecode.measure.prompts import Conversation, load_prompts

COUNT = 24
"""How many of the package's prompts are used unless told otherwise."""


def choose_prompts(path: Path | None = None, count: int | None = None) -> list[Conversation]:
    """Prompts, spread over their groups.

    Args:
        path: JSONL as of :func:`paradecode.measure.prompts.load_prompts`; None: the package's.
        count: how many; None takes all of a file, 24 of the package's.

    Raises:
        InvalidInput: naming what cannot be used.
    """
    if count is not None and count < 1:
        raise InvalidInput("count", count, "give at least 1")
    prompts = load_prompts(path)
    if count is None:
        count = COUNT if path is None else len(prompts)
    return spread(prompts)[:count]


def texts_of(llm: LLM, prompts: Sequence[Conversation]) -> list[Text]:
    """The first turns as token ids, in the model's chat format where it has one."""
    return [Text(prompt.id, tuple(_encode(llm, prompt.turns[0]))) for prompt in prompts]


def spread(prompts: Sequence[Conversation]) -> list[Conversation]:
    """The first of each group, then the second of each, and so on."""
    seen: dict[str, int] = {}
    ranks: list[int] = []
    for prompt in prompts:
        ranks.append(seen.get(prompt.group, 0))
        seen[prompt.group] = ranks[-1] + 1
    order = sorted(range(len(prompts)), key=ranks.__getitem__)
    return [prompts[index] for index in order]


def _encode(llm: LLM, text: str) -> list[int]:
    if llm.chat_template is None:
        return llm.tokenizer.encode(text)
    return llm.chat_tokens([{"role": "user", "content": text}])
