"""Stories whose numbers the model may choose, but which must agree with one another."""

from __future__ import annotations

import re
from random import Random

from paradecode_lab.measure.tasks.arithmetic import GAINS, LOSSES
from paradecode_lab.measure.tasks.chains import length
from paradecode_lab.measure.tasks.task import Task
from paradecode_lab.measure.tasks.words import NAMES, THINGS


def story(random: Random) -> tuple[str, str]:
    """Draw a person, things and 1 to 6 verbs.

    The answer says how many things there are at first, and for each verb the change and the new
    number: ``Ada has 23 figs finds 4 27 eats 5 22``.
    """
    name, things = random.choice(NAMES), random.choice(THINGS)
    now = random.randint(10, 99)
    told, verbs = [f"{name} has {now} {things}"], []
    for _ in range(length(random, 1, 6)):
        change = random.choice([n for n in range(-9, 10) if n and 10 <= now + n <= 99])
        now += change
        verbs.append(random.choice(GAINS if change > 0 else LOSSES))
        told.append(f"{verbs[-1]} {abs(change)} {now}")
    return f"story: {name} {things} {' '.join(verbs)}", " ".join(told)


def agrees(prompt: str, answer: str, text: str) -> bool:
    """Decide whether ``text`` has the prompt's words in order, and all its numbers agree."""
    name, things, *verbs = prompt.removeprefix("story: ").split(" ")
    form = rf"{name} has (\d\d) {things}" + "".join(rf" {verb} (\d) (\d\d)" for verb in verbs)
    found = re.fullmatch(form, text)
    if found is None:
        return False
    now, *rest = map(int, found.groups())
    for verb, amount, after in zip(verbs, rest[::2], rest[1::2]):
        now += amount if verb in GAINS else -amount
        if not amount or after != now:
            return False
    return now >= 10


STORIES = (Task("story", story, agrees, free=True),)
