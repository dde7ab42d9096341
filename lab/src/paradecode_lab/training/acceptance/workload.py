"""Decode a workload with a recording budget instead of the method's own budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

import numpy as np

from paradecode.core.errors import InvalidInput
from paradecode.core.sampling import SamplingParams
from paradecode.llm import LLM
from paradecode.methods.draft.loop import Budget, DraftVerify
from paradecode.methods.specs import Spec
from paradecode.prompts import Messages
from paradecode_lab.measure.prompts import DEFAULT_FILE, Item, load_prompts, make_items
from paradecode_lab.training.decoding import Progress, decode_all
from paradecode_lab.training.samples import Origin


@dataclass(frozen=True)
class DraftWorkload:
    """The conversations that are decoded for training, and their settings.

    Attributes:
        prompts: JSONL file in the benchmark's format; None takes the package's own file.
        limit: number of conversations, spread evenly over the file; 0 takes all.
        max_tokens: the most tokens of an answer.
        temperature, seed: sampling parameters of the answers.
    """

    prompts: Path | None = None
    limit: int = 0
    max_tokens: int = 128
    temperature: float = 0.0
    seed: int = 0

    def params(self) -> SamplingParams:
        return SamplingParams.from_mapping(
            {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": self.seed}
        )

    def check(self) -> None:
        """Raise InvalidInput for a bad setting or file, before a model is loaded."""
        self.params(), load_prompts(self.prompts)

    def items(self, llm: LLM) -> list[Item]:
        """Return the conversations' turns with the token ids of their prompts.

        Plain decoding writes the earlier answers that a prompt contains.
        """
        prompts = load_prompts(self.prompts)
        if 0 < self.limit < len(prompts):
            chosen = np.linspace(0, len(prompts) - 1, self.limit).round().astype(int)
            prompts = [prompts[place] for place in chosen]

        def encode(messages: Messages) -> list[int]:
            if llm.chat_template is not None:
                return llm.chat_tokens(messages)
            return llm.tokenizer.encode("\n".join(m["content"] for m in messages))

        def answer(messages: Messages, limit: int) -> str:
            ids = encode(messages)
            return llm.complete([ids], max_tokens=limit, decoder=None)[0].text

        return make_items(prompts, encode, answer, self.max_tokens)

    def origin(self, llm: LLM, spec: Spec) -> Origin:
        """Return digests of everything that the samples depend on, except this machine's speed."""
        text = (self.prompts or DEFAULT_FILE).read_bytes()
        facts = (self.limit, self.max_tokens, self.temperature, self.seed, str(spec))
        models = (llm.model, llm.draft_model, llm.backend.name)
        return Origin.of(llm, (facts, models), text, spec)


def drafting(spec: Spec) -> DraftVerify:
    """Return the decoder of a spec; raise InvalidInput unless it drafts and verifies."""
    decoder = spec()
    if not isinstance(decoder, DraftVerify):
        raise InvalidInput("--decoder", str(spec), "name a method that drafts and verifies")
    return decoder


def draft_size(decoder: DraftVerify) -> int:
    """Return the most nodes of the decoder's drafts."""
    return decoder.budget.count


def play(
    llm: LLM,
    items: Sequence[Item],
    spec: Spec,
    params: SamplingParams,
    record: Callable[[int], Budget],
    progress: Progress,
) -> None:
    """Decode the items one after the other, item i with ``record(i)`` as its budget.

    The requests have a salt of their own, so earlier decodings do not change the recordings.

    Raises:
        Exception: the error of a request, if one failed.
    """
    prompts = [item.token_ids for item in items]
    decode_all(
        llm, prompts,
        lambda number: replace(drafting(spec), budget=record(number)),
        [replace(params, max_tokens=item.max_tokens) for item in items],
        progress, together=1, salt=f"training {uuid4()}",
    )  # fmt: skip
