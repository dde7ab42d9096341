"""Chains: every item of an answer needs the item before it, so one forward cannot write all items.

A model's depth limits how many items of a chain it can compute in one forward. The more tokens a
forward writes, the fewer answers are right, and short chains stay right longer than long ones.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

from paradecode_lab.measure.tasks.task import Task, exactly
from paradecode_lab.measure.tasks.words import NAMES

VARIABLES = "abc"


def chain(random: Random) -> tuple[str, str]:
    """Draw 4 to 30 digits; the answer is their running sums, modulo 10."""
    digits = [random.randrange(10) for _ in range(length(random, 4, 30))]
    total, sums = 0, []
    for digit in digits:
        total = (total + digit) % 10
        sums.append(total)
    return f"chain: {_joined(digits)}", _joined(sums)


def tally(random: Random) -> tuple[str, str]:
    """Draw 3 to 14 changes by less than 10.

    The answer is the two-digit number after each change.
    """
    now = random.randint(10, 99)
    told, after = [str(now)], []
    for _ in range(length(random, 3, 14)):
        change = random.choice([n for n in range(-9, 10) if n and 10 <= now + n <= 99])
        now += change
        told.append(f"{change:+d}")
        after.append(now)
    return f"tally: {' '.join(told)}", _joined(after)


def path(random: Random) -> tuple[str, str]:
    """Draw a path through 3 to 22 names, given as pairs of successive names in any order.

    The prompt also has up to four pairs of another path. The answer lists the names of the path in
    order.
    """
    long, other = length(random, 3, 22), random.randint(0, 4)
    names = random.sample(NAMES, long + other + 1)
    walk, rest = names[:long], names[long:]
    pairs = [f"{a} {b}" for line in (walk, rest) for a, b in pairwise(line)]
    random.shuffle(pairs)
    return f"path {walk[0]}: {', '.join(pairs)}", " ".join(walk)


def trace(random: Random) -> tuple[str, str]:
    """Draw 2 to 8 statements, ``a+b`` or ``a-b``, which assign to their first variable, modulo 10.

    The answer has the result of each statement: ``a3+5=8``.
    """
    values = {name: random.randrange(10) for name in VARIABLES}
    began = "".join(f"{name}{value}" for name, value in values.items())
    statements, computed = [], []
    for _ in range(length(random, 2, 8)):
        name, other = random.sample(VARIABLES, 2)
        sign = random.choice("+-")
        first, second = values[name], values[other]
        values[name] = (first + second if sign == "+" else first - second) % 10
        statements.append(f"{name}{sign}{other}")
        computed.append(f"{name}{first}{sign}{second}={values[name]}")
    return f"trace {began}: {';'.join(statements)}", ";".join(computed)


def length(random: Random, least: int, most: int) -> int:
    """Draw a length between ``least`` and ``most``: the shorter of two uniform draws.

    Long answers are rarer, because they cost more.
    """
    return min(random.randint(least, most), random.randint(least, most))


def _joined(numbers: list[int]) -> str:
    return " ".join(map(str, numbers))


CHAINS = (
    Task("chain", chain, exactly),
    Task("tally", tally, exactly),
    Task("path", path, exactly),
    Task("trace", trace, exactly),
)
