"""A task: a generator of prompts with reference answers, and a checker of answers."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random

from paradecode.core.errors import InvalidInput

HELD_OUT_OF = 10
"""One of this many prompts is held out from training."""


@dataclass(frozen=True)
class TaskInstance:
    """A prompt with a right answer; if several answers are right, ``answer`` is one of them."""

    task: str
    prompt: str
    answer: str


@dataclass(frozen=True)
class Task:
    """A kind of task, which draws instances and checks answers.

    Attributes:
        make: draws a prompt and a right answer.
        accepts: (prompt, answer, text) -> whether ``text`` is right. It depends on ``answer`` only
            if there is one right answer.
        free: whether several answers are right, so that the tokens of an answer depend on one
            another even when the prompt is known.
    """

    name: str
    make: Callable[[Random], tuple[str, str]]
    accepts: Callable[[str, str, str], bool]
    free: bool = False

    def draw(self, random: Random, held_out: bool) -> TaskInstance:
        """Draw one instance that is held out from training, or one that is not."""
        while True:
            prompt, answer = self.make(random)
            if is_held_out(prompt) == held_out:
                return TaskInstance(self.name, prompt, answer)

    def held_out(self, count: int, seed: int = 0) -> list[TaskInstance]:
        """Return ``count`` different held-out instances; equal arguments give equal instances.

        Raises:
            InvalidInput: the task has fewer instances.
        """
        random = Random(f"{self.name}/held out/{seed}")
        found: dict[str, TaskInstance] = {}
        for _ in range(1000 + 100 * count):
            if len(found) == count:
                return list(found.values())
            instance = self.draw(random, held_out=True)
            found.setdefault(instance.prompt, instance)
        raise InvalidInput("count", count, f"{self.name} has about {len(found)} held-out prompts")

    def check(self, instance: TaskInstance, text: str) -> bool:
        """Decide whether ``text``, without the spaces around it, answers the instance."""
        return self.accepts(instance.prompt, instance.answer, text.strip())

    def scorer(self, instance: TaskInstance) -> Callable[[str, Sequence[str]], list[float]]:
        """Return a scorer for searches that gives 1 to a right answer and 0 to a wrong one."""
        return lambda prompt, texts: [float(self.check(instance, text)) for text in texts]


def is_held_out(prompt: str) -> bool:
    """Decide whether training never sees this prompt.

    A hash decides, so no list of prompts is needed.
    """
    return zlib.crc32(prompt.encode("utf-8")) % HELD_OUT_OF == 0


def exactly(prompt: str, answer: str, text: str) -> bool:
    """Check an answer of a task with a single right answer."""
    return text == answer


def stream(tasks: tuple[Task, ...], random: Random) -> Iterator[TaskInstance]:
    """Yield training instances without end, one of each task in turn."""
    while True:
        for task in tasks:
            yield task.draw(random, held_out=False)
