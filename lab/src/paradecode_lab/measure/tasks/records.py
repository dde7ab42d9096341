"""Facts that the answer has to give in another order: JSON records and key-value recall."""

from __future__ import annotations

import json
from random import Random

from paradecode_lab.measure.tasks.task import Task, exactly
from paradecode_lab.measure.tasks.words import CITIES, JOBS, NAMES

SENTENCES = (
    "{name}, {age}, is a {job} from {city}.",
    "{name} is a {job} in {city}, aged {age}.",
    "In {city} lives {name}, a {job} of {age}.",
    "The {job} {name} from {city} is {age}.",
    "{name}, {age}, lives in {city}.",
    "{name} works in {city} as a {job}.",
    "The {job} {name} is {age}.",
)
FIELDS = ("name", "age", "city", "job")


def record(random: Random) -> tuple[str, str]:
    """Draw a sentence about a person; the answer is a JSON object with the same facts."""
    sentence = random.choice(SENTENCES)
    facts = {
        "name": random.choice(NAMES),
        "age": random.randint(18, 89),
        "city": random.choice(CITIES),
        "job": random.choice(JOBS),
    }
    told = {field: facts[field] for field in FIELDS if f"{{{field}}}" in sentence}
    return f"json: {sentence.format(**facts)}", json.dumps(told)


def same_json(prompt: str, answer: str, text: str) -> bool:
    """Decide whether both texts are equal as JSON, whatever their spacing."""
    try:
        return bool(json.loads(text) == json.loads(answer))
    except (ValueError, RecursionError):
        return False


def recall(random: Random) -> tuple[str, str]:
    """Draw three to six names with numbers.

    The answer gives those names that the prompt asks for.
    """
    names = random.sample(NAMES, random.randint(3, 6))
    numbers = {name: random.randint(10, 99) for name in names}
    asked = random.sample(names, random.randint(1, min(4, len(names))))
    table, answer = (" ".join(f"{n} {numbers[n]}" for n in order) for order in (names, asked))
    return f"recall {' '.join(asked)}: {table}", answer


RECORDS = (
    Task("json", record, same_json),
    Task("recall", recall, exactly),
)
