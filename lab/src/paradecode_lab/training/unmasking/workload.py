"""Prompts that are decoded for training: the package's parallel tasks, or those of a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode_lab.measure.prompts import load_prompts
from paradecode_lab.measure.tasks.task import Task, TaskInstance
from paradecode_lab.measure.tasks.tasks import tasks_named
from paradecode_lab.training.samples import Origin


@dataclass(frozen=True)
class CanvasWorkload:
    """The prompts that are decoded, and the length of their canvases.

    Attributes:
        prompts: JSONL file of {id, group, turns}; the first turn of each line is a prompt. None
            takes the package's parallel tasks, without the prompts held out for benchmarks.
        tasks: set of tasks, ``simple`` or ``graded``, that is used without ``prompts``.
        limit: number of prompts, from all tasks in turn; 0 takes 40 of each task, or the whole
            file.
        max_tokens: number of masks after the prompt.
        seed: seed of the tasks.

    Raises:
        InvalidInput: for an unknown set of tasks.
    """

    prompts: Path | None = None
    tasks: str = "simple"
    limit: int = 0
    max_tokens: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        tasks_named(self.tasks)

    def texts(self) -> list[str]:
        """Return the texts of the prompts, all different."""
        if self.prompts is not None:
            texts = list(dict.fromkeys(p.turns[0] for p in load_prompts(self.prompts)))
            return texts[: self.limit or None]
        return [instance.prompt for _, instance in self.drawn()]

    def drawn(self) -> list[tuple[Task, TaskInstance]]:
        """Return task and instance of each prompt; empty if the prompts come from a file."""
        if self.prompts is not None:
            return []
        random, found = Random(f"unmasking/{self.seed}"), dict[str, tuple[Task, TaskInstance]]()
        tasks = tasks_named(self.tasks)
        count = self.limit or 40 * len(tasks)
        for turn in range(100 * count):
            if len(found) == count:
                break
            task = tasks[turn % len(tasks)]
            instance = task.draw(random, held_out=False)
            found.setdefault(instance.prompt, (task, instance))
        return list(found.values())

    def encoded(self, llm: LLM) -> list[list[int]]:
        """Return the token ids of each prompt, in the model's chat format if it has one.

        Raises:
            InvalidInput: for a model that is not a masked diffusion model.
        """
        check_diffusion(llm)
        return self.asked(llm)

    def asked(self, llm: LLM) -> list[list[int]]:
        """Return the token ids of each prompt, as :meth:`encoded`, for a model of either family."""
        if llm.chat_template is None:
            return [llm.tokenizer.encode(text) for text in self.texts()]
        messages = ([{"role": "user", "content": text}] for text in self.texts())
        return [llm.chat_tokens(each) for each in messages]

    def params(self) -> SamplingParams:
        """Return greedy sampling parameters.

        The end of a text ends the request, but not the canvas.
        """
        return SamplingParams.from_mapping({"max_tokens": self.max_tokens, "seed": self.seed})

    def origin(self, llm: LLM, *settings: object) -> Origin:
        """Return digests of everything that the samples depend on."""
        text = self.prompts.read_bytes() if self.prompts else b""
        facts = (
            self.tasks,
            self.limit,
            self.max_tokens,
            self.seed,
            llm.model,
            llm.backend.name,
            settings,
        )
        return Origin.of(llm, facts, text)


def check_diffusion(llm: LLM) -> None:
    """Raise InvalidInput unless the model is a masked diffusion model."""
    if llm.config.mask_token is None:
        fix = "name a diffusion model, such as paradecode/tiny-diffusion"
        raise InvalidInput("--model", llm.model, fix)
