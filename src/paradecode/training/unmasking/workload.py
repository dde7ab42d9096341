"""What is decoded to learn from: instances of the parallel tasks, or a file of prompts."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random

from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode.measure.prompts import load_prompts
from paradecode.measure.tasks.task import Task, TaskInstance
from paradecode.measure.tasks.tasks import TASKS


@dataclass(frozen=True)
class CanvasWorkload:
    """Where the prompts come from, and how long the canvases are.

    Attributes:
        prompts: JSONL file of {id, group, turns}, of which the first turns are taken; None is the
            package's parallel tasks, of those prompts that are not held out for benchmarks.
        limit: so many prompts, all tasks in turn; 0 is 40 a task, or the whole file.
        max_tokens: masks after the prompt.
        seed: of the tasks.
    """

    prompts: Path | None = None
    limit: int = 0
    max_tokens: int = 64
    seed: int = 0

    def texts(self) -> list[str]:
        """The prompts, all different."""
        if self.prompts is not None:
            texts = list(dict.fromkeys(p.turns[0] for p in load_prompts(self.prompts)))
            return texts[: self.limit or None]
        return [instance.prompt for _, instance in self.drawn()]

    def drawn(self) -> list[tuple[Task, TaskInstance]]:
        """The instances of the package's tasks, and what checks their answers; none of a file."""
        if self.prompts is not None:
            return []
        random, found = Random(f"unmasking/{self.seed}"), dict[str, tuple[Task, TaskInstance]]()
        count = self.limit or 40 * len(TASKS)
        for turn in range(100 * count):
            if len(found) == count:
                break
            task = TASKS[turn % len(TASKS)]
            instance = task.draw(random, held_out=False)
            found.setdefault(instance.prompt, (task, instance))
        return list(found.values())

    def encoded(self, llm: LLM) -> list[list[int]]:
        """Token ids of each prompt, in the model's chat format if it has one.

        Raises:
            InvalidInput: for a model that is not one of masked diffusion.
        """
        check_diffusion(llm)
        if llm.chat_template is None:
            return [llm.tokenizer.encode(text) for text in self.texts()]
        messages = ([{"role": "user", "content": text}] for text in self.texts())
        return [llm.chat_tokens(each) for each in messages]

    def params(self) -> SamplingParams:
        """Greedy; the end of a text ends the request, but not the canvas."""
        return SamplingParams.from_mapping({"max_tokens": self.max_tokens, "seed": self.seed})

    def digest(self, llm: LLM, *settings: object) -> str:
        """Names everything that samples depend on."""
        text = self.prompts.read_bytes() if self.prompts else b""
        facts = (self.limit, self.max_tokens, self.seed, llm.model, llm.backend.name, settings)
        return blake2b(text + repr(facts).encode(), digest_size=16).hexdigest()


def check_diffusion(llm: LLM) -> None:
    """Raise InvalidInput unless the model is one of masked diffusion."""
    if llm.config.mask_token is None:
        fix = "name a diffusion model, such as paradecode/tiny-diffusion"
        raise InvalidInput("--model", llm.model, fix)
