"""Questions in plain words, for chat models.

An answer counts as right if its final result is right.
"""

from __future__ import annotations

from random import Random

from paradecode.search.strategies.sampled import final_answer
from paradecode_lab.measure.tasks.task import Task
from paradecode_lab.measure.tasks.tasks import BY_NAME
from paradecode_lab.measure.tasks.words import NAMES, THINGS


def sums(random: Random) -> tuple[str, str]:
    """Draw a question for the sum of two to four numbers up to 20."""
    terms = [random.randint(1, 20) for _ in range(random.randint(2, 4))]
    return f"What is {' + '.join(map(str, terms))}?", str(sum(terms))


def small_sums(random: Random) -> tuple[str, str]:
    """Draw a story with two numbers up to 12."""
    name, things = random.choice(NAMES), random.choice(THINGS)
    now, more = random.randint(1, 12), random.randint(1, 12)
    told = f"{name} has {now} {things} and finds {more} more."
    return f"{told} How many {things} does {name} have now?", str(now + more)


def asked_sums(random: Random) -> tuple[str, str]:
    """Draw a question for the sum of two numbers up to 9.

    The user gives a name, so that there are many different prompts.
    """
    one, two = random.randint(1, 9), random.randint(1, 9)
    return f"Hello, I am {random.choice(NAMES)}. What is {one} + {two}?", str(one + two)


def word_sums(random: Random) -> tuple[str, str]:
    """Draw a story of two or three steps, such as buying, giving away and multiplying."""
    name, other = random.sample(NAMES, 2)
    things, bags, each = random.choice(THINGS), random.randint(2, 9), random.randint(3, 12)
    now = bags * each
    told = f"{name} has {bags} boxes with {each} {things} in each."
    given = random.randint(1, now - 1)
    told += f" {name} gives {given} {things} to {other}."
    now -= given
    if random.random() < 0.5:
        found = random.randint(5, 40)
        told += f" Then {name} buys {found} more {things}."
        now += found
    return f"{told} How many {things} does {name} have now?", str(now)


def final(prompt: str, answer: str, text: str) -> bool:
    """Decide whether the final answer in ``text`` is right; see :func:`final_answer`."""
    return final_answer(text) == answer


_MADE = {
    "sums": sums, "small-sums": small_sums, "asked-sums": asked_sums,
    "word-sums": word_sums,
}  # fmt: skip
QUESTIONS = {name: Task(name, make, final) for name, make in _MADE.items()}
CHECKED = {**BY_NAME, **QUESTIONS}
"""All tasks, by name."""
