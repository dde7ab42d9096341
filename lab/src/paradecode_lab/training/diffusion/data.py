"""Make training rows. They depend only on (seed, step), so training can continue at any step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode_lab.measure.tasks.tasks import BY_NAME
from paradecode_lab.training.diffusion.model import CONTEXT
from paradecode_lab.training.diffusion.vocabulary import ASSISTANT, END, USER

ROWS_TOGETHER = 32
"""Number of rows in a pack.

Rows of similar length share a pack, and a pack fits into the CPU's cache.
"""


@dataclass(frozen=True, eq=False)
class Pack:
    """Rows of one length: the prompt, the answer, and END up to the last position.

    Attributes:
        tokens: int64 [B, T].
        start: int64 [B], index of the answer's first token.
        end: int64 [B], index after the first END.
    """

    tokens: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]


def prompt_tokens(tokenizer: Any, prompt: str) -> list[int]:
    """Return the token ids of a prompt in the chat template."""
    return [USER, *tokenizer.encode(prompt).ids, ASSISTANT]


def packs(
    tokenizer: Any, shares: Mapping[str, float], seed: int, step: int, rows: int, tails: bool
) -> Iterator[Pack]:
    """Yield the rows of one optimiser step in packs, shortest rows first.

    Args:
        shares: task name -> how often the task is drawn, relative to the others.
        rows: number of rows.
        tails: whether END is repeated a random number of times after the answer, as on a canvas
            that is longer than its text.
    """
    random = Random(f"{seed}/{step}")
    made: list[tuple[int, list[int]]] = []
    for name in random.choices(list(shares), list(shares.values()), k=rows):
        instance = BY_NAME[name].draw(random, held_out=False)
        prompt = prompt_tokens(tokenizer, instance.prompt)
        made.append((len(prompt), [*prompt, *tokenizer.encode(instance.answer).ids, END]))
    made.sort(key=lambda row: len(row[1]))
    for first in range(0, rows, ROWS_TOGETHER):
        part = made[first : first + ROWS_TOGETHER]
        longest = len(part[-1][1])
        length = min(CONTEXT, longest + (_tail(random) if tails else 0))
        tokens = np.full((len(part), length), END, np.int64)
        for row, (_, ids) in zip(tokens, part):
            row[: len(ids)] = ids
        yield Pack(
            tokens, np.array([start for start, _ in part]), np.array([len(ids) for _, ids in part])
        )


def _tail(random: Random) -> int:
    """Draw the number of repeated ENDs: usually a few, because they are easy to learn.

    Rarely it is up to 100.
    """
    if random.random() < 0.05:
        return random.randint(0, 100)
    return int(random.expovariate(1 / 5))
