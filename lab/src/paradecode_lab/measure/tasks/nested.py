"""Brackets and JSON: the right place of each piece depends on all pieces before it."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from paradecode_lab.measure.tasks.chains import length
from paradecode_lab.measure.tasks.records import same_json
from paradecode_lab.measure.tasks.task import Task, exactly

CLOSERS = {"(": ")", "[": "]", "{": "}"}
OPENERS = "".join(CLOSERS)
KEYS = "abcdefgh"
MOST_LEAVES, MOST_KEYS = 6, 9


def close(random: Random) -> tuple[str, str]:
    """Draw a text with 3 to 24 brackets that are still open; the answer closes them."""
    open_now: list[str] = []
    text: list[str] = []
    wanted = length(random, 3, 24)
    while len(open_now) < wanted:
        if open_now and random.random() < 0.25:
            text.append(CLOSERS[open_now.pop()])
        else:
            open_now.append(random.choice(OPENERS))
            text.append(open_now[-1])
    return f"close: {''.join(text)}", "".join(CLOSERS[each] for each in reversed(open_now))


def balance(random: Random) -> tuple[str, str]:
    """Draw 3 to 15 opening brackets.

    The answer has them in this order, and closes each anywhere.
    """
    openers = random.choices(OPENERS, k=length(random, 3, 15))
    open_now: list[str] = []
    text: list[str] = []
    for opener in openers:
        while open_now and random.random() < 0.4:
            text.append(CLOSERS[open_now.pop()])
        open_now.append(opener)
        text.append(opener)
    text += (CLOSERS[each] for each in reversed(open_now))
    return f"balance: {''.join(openers)}", "".join(text)


def is_balanced(prompt: str, answer: str, text: str) -> bool:
    """Decide whether ``text`` has the prompt's opening brackets in order and closes them all."""
    open_now: list[str] = []
    for each in text:
        if each in CLOSERS:
            open_now.append(each)
        elif not open_now or CLOSERS[open_now.pop()] != each:
            return False
    openers = "".join(each for each in text if each in CLOSERS)
    return not open_now and openers == prompt.partition(": ")[2]


def nest(random: Random) -> tuple[str, str]:
    """Draw two to six paths with digits.

    The answer is the nested JSON object that they describe.
    """
    leaves = length(random, 2, MOST_LEAVES)
    while True:
        tree: dict[str, Any] = {}
        keys = _grow(random, tree, leaves, depth=1)
        if keys <= MOST_KEYS:
            break
    paths = " ".join(f"{'.'.join(where)}={value}" for where, value in _leaves(tree))
    return f"nest: {paths}", json.dumps(tree, separators=(",", ":"))


def _grow(random: Random, tree: dict[str, Any], leaves: int, depth: int) -> int:
    """Give ``tree`` this number of leaves, up to four levels deep; returns the number of keys."""
    made = 0
    for key in random.sample(KEYS, len(KEYS)):
        if not leaves:
            break
        inner = random.randint(1, leaves) if depth < 4 and random.random() < 0.5 else 0
        tree[key] = {} if inner else random.randrange(10)
        made += 1 + (_grow(random, tree[key], inner, depth + 1) if inner else 0)
        leaves -= inner or 1
    return made


def _leaves(tree: dict[str, Any]) -> list[tuple[list[str], int]]:
    """Return the path and the value of each leaf, in the order of the JSON text."""
    found: list[tuple[list[str], int]] = []
    for key, value in tree.items():
        inner = _leaves(value) if isinstance(value, dict) else [([], value)]
        found += (([key, *where], leaf) for where, leaf in inner)
    return found


NESTED = (
    Task("close", close, exactly),
    Task("balance", balance, is_balanced, free=True),
    Task("nest", nest, same_json),
)
