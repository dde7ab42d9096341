"""Sums with worked steps: every step needs the result of the step before it."""

from __future__ import annotations

from random import Random

from paradecode_lab.measure.tasks.task import Task, exactly
from paradecode_lab.measure.tasks.words import NAMES, THINGS

MOST_DIGITS = 4
GAINS, LOSSES = ("finds", "buys", "gets"), ("loses", "eats", "sells")


def addition(random: Random) -> tuple[str, str]:
    """Draw a sum of two numbers of 1 to 4 digits; the answer adds from the right: ``8+6+0=14``."""
    first, second = (
        random.randrange(10 ** (digits - 1), 10**digits)
        for digits in (random.randint(1, MOST_DIGITS), random.randint(1, MOST_DIGITS))
    )
    steps, carry = [], 0
    for place in range(max(len(str(first)), len(str(second)))):
        a, b = (number // 10**place % 10 for number in (first, second))
        steps.append(f"{a}+{b}+{carry}={a + b + carry:02d}")
        carry = (a + b + carry) // 10
    return f"add: {first} + {second}", f"{' '.join(steps)} so {first + second}"


def word_problem(random: Random) -> tuple[str, str]:
    """Draw a story in which a number of things changes two to four times, always below 100."""
    name, things = random.choice(NAMES), random.choice(THINGS)
    now = random.randint(2, 60)
    story, steps = [f"{name} has {now} {things}"], []
    for _ in range(random.randint(2, 4)):
        possible = {"+": now < 98, "-": now > 1, "*": now < 50}
        kind = random.choice([kind for kind, is_possible in possible.items() if is_possible])
        if kind == "*":
            amount, after, told = 2, 2 * now, "doubles them"
        elif kind == "+":
            amount = random.randint(1, min(20, 99 - now))
            after, told = now + amount, f"{random.choice(GAINS)} {amount}"
        else:
            amount = random.randint(1, min(20, now - 1))
            after, told = now - amount, f"{random.choice(LOSSES)} {amount}"
        story.append(told)
        steps.append(f"{now} {kind} {amount} = {after}.")
        now = after
    question = f"{', '.join(story)}. How many {things} now?"
    return question, f"{' '.join(steps)} The answer is {now}."


ARITHMETIC = (
    Task("addition", addition, exactly),
    Task("word-problem", word_problem, exactly),
)
