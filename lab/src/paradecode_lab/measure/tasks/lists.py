"""Operations on lists, after ParallelBench (Kang et al. 2025, arXiv:2510.04767).

The prompt of copy, reverse, sort and the operations at an index determines every item of the
answer, so all items can be written at once. In shuffle, and where the prompt says "any" or
"anywhere", the model may choose. Each item then depends on the other items, and writing several at
once goes wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random

from paradecode_lab.measure.tasks.task import Task, exactly
from paradecode_lab.measure.tasks.words import DIGITS, NAMES

SHORTEST, LONGEST = 3, 8


def draw_items(random: Random) -> tuple[list[str], str]:
    """Draw distinct names or digits, and one more that is not among them."""
    pool: Sequence[str] = random.choice((NAMES, DIGITS))
    *items, other = random.sample(pool, random.randint(SHORTEST, LONGEST) + 1)
    return items, other


def text_of(items: Sequence[str]) -> str:
    return " ".join(items)


def items_of(prompt: str) -> list[str]:
    """Return the list after the prompt's colon."""
    return prompt.partition(": ")[2].split(" ")


def copy(random: Random) -> tuple[str, str]:
    items, _ = draw_items(random)
    return f"copy: {text_of(items)}", text_of(items)


def reverse(random: Random) -> tuple[str, str]:
    items, _ = draw_items(random)
    return f"reverse: {text_of(items)}", text_of(items[::-1])


def sort(random: Random) -> tuple[str, str]:
    items, _ = draw_items(random)
    return f"sort: {text_of(items)}", text_of(sorted(items))


def shuffle(random: Random) -> tuple[str, str]:
    items, _ = draw_items(random)
    return f"shuffle: {text_of(items)}", text_of(random.sample(items, len(items)))


def insert(random: Random, said: str) -> tuple[str, str]:
    """Draw a list and an item to insert.

    ``said`` names the place in the prompt, with ``{n}`` as number.
    """
    items, new = draw_items(random)
    index = random.randint(0, len(items))
    answer = [*items[:index], new, *items[index:]]
    return f"insert {new} {said.format(n=index + 1)}: {text_of(items)}", text_of(answer)


def remove(random: Random, said: str) -> tuple[str, str]:
    items, _ = draw_items(random)
    index = random.randrange(len(items))
    answer = items[:index] + items[index + 1 :]
    return f"remove {said.format(n=index + 1)}: {text_of(items)}", text_of(answer)


def replace(random: Random, said: str) -> tuple[str, str]:
    items, new = draw_items(random)
    index = random.randrange(len(items))
    answer = [*items[:index], new, *items[index + 1 :]]
    return f"replace {said.format(n=index + 1)} with {new}: {text_of(items)}", text_of(answer)


def is_permutation(prompt: str, answer: str, text: str) -> bool:
    """Decide whether ``text`` has the prompt's items in any order.

    As in the paper, the prompt's own order counts as right too.
    """
    return sorted(text.split(" ")) == sorted(items_of(prompt))


def is_insertion(prompt: str, answer: str, text: str) -> bool:
    new, got = prompt.split(" ")[1], text.split(" ")
    return got.count(new) == 1 and [item for item in got if item != new] == items_of(prompt)


def is_removal(prompt: str, answer: str, text: str) -> bool:
    items, got = items_of(prompt), text.split(" ")
    return any(got == items[:i] + items[i + 1 :] for i in range(len(items)))


def is_replacement(prompt: str, answer: str, text: str) -> bool:
    new = prompt.partition(":")[0].split(" ")[-1]
    items, got = items_of(prompt), text.split(" ")
    return any(got == [*items[:i], new, *items[i + 1 :]] for i in range(len(items)))


LISTS = (
    Task("copy", copy, exactly),
    Task("reverse", reverse, exactly),
    Task("sort", sort, exactly),
    Task("shuffle", shuffle, is_permutation, free=True),
    Task("insert-index", partial(insert, said="at {n}"), exactly),
    Task("insert-random", partial(insert, said="anywhere"), is_insertion, free=True),
    Task("remove-index", partial(remove, said="item {n}"), exactly),
    Task("remove-random", partial(remove, said="any item"), is_removal, free=True),
    Task("replace-index", partial(replace, said="item {n}"), exactly),
    Task("replace-random", partial(replace, said="any item"), is_replacement, free=True),
)
