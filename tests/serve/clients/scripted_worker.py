"""A worker whose model writes what a script says, so that whole conversations with tools are tests.

All else is real: tokens, template, cache, drafts, sampling, constraints, and the server. The file
that ``PARADECODE_SCRIPT`` names lists scenes. A scene has ``task`` and ``tool``, texts in its
prompts, and ``says``, pairs of a pattern and an answer. The first pattern that is found behind both
the task and the last answer gives the next answer. Other prompts are answered with ``Yes.``.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode import llm
from paradecode.backends.interface import PAGE, Span, SpanResult
from paradecode.core.logits import ArrayLogits
from paradecode.models.catalogue import open_model
from paradecode.models.checkpoint import Checkpoint
from paradecode.models.config import ModelConfig
from paradecode.models.tokenizer import Tokenizer
from paradecode.serve.worker import __main__ as worker
from paradecode.testing.toy import ToyBackend, toy_config

CONTEXT = 1 << 18
START, END = "<|im_start|>", "<|im_end|>"
SURE = 100.0
"""Logit of the script's token. All others have 0, so that a mask can forbid the script's."""


class ScriptedBackend(ToyBackend):
    """Keeps the tokens themselves as values, and continues the text that a row sees."""

    def __init__(self, config: ModelConfig, tokenizer: Tokenizer, scenes: list[Any]) -> None:
        super().__init__(config)
        self._tokenizer, self._scenes = tokenizer, scenes
        (self._start,), (self._end,) = (
            tokenizer.encode(mark, special=False) for mark in (START, END)
        )
        self._opening = tokenizer.encode("assistant\n", special=False)
        self._answer = lru_cache(64)(self._found)

    def forward(self, spans: Sequence[Span]) -> list[SpanResult]:
        results = []
        for span in spans:
            slots = (span.pages.astype(np.int64)[:, None] * PAGE + np.arange(PAGE)).ravel()
            before = span.visible if span.visible is not None else np.arange(span.context)
            cached, tail = (self.values[0][slots[some]] for some in (before, span.tail))
            mask = span.mask
            if mask is None:
                count = len(span.tokens)
                mask = np.hstack([np.ones((count, len(tail)), bool), np.tri(count, dtype=bool)])
            behind = np.concatenate([tail, span.tokens]).astype(np.uint64)
            logits = np.zeros((len(span.logits), self.config.vocab_size), np.float32)
            for row, at in enumerate(span.logits):
                seen = np.concatenate([cached, behind[mask[at]]]).astype(np.int32)
                logits[row, self._next(seen)] = SURE
            kept = span.slots >= 0
            self.values[0][slots[span.slots[kept]]] = span.tokens[kept]
            results.append(SpanResult(ArrayLogits(logits)))
        return results

    def _next(self, seen: NDArray[np.int32]) -> int:
        """Return the token that the script has after the tokens ``seen``."""
        starts = np.flatnonzero(seen == self._start)
        said = seen[starts[-1] + 1 :] if len(starts) else seen
        written = len(said) - len(self._opening)
        if not len(starts) or written < 0 or said[: len(self._opening)].tolist() != self._opening:
            return self._end
        answer = self._answer(seen[: starts[-1]].tobytes())
        return answer[written] if written < len(answer) else self._end

    def _found(self, prompt: bytes) -> list[int]:
        text = self._tokenizer.decode(np.frombuffer(prompt, np.int32).tolist(), skip_special=False)
        answered = text.rfind(f"{START}assistant")
        for scene in self._scenes:
            if scene["task"] in text and scene["tool"] in text:
                new = text[max(answered, text.rfind(scene["task"])) :]
                for pattern, answer in scene["says"]:
                    if re.search(pattern, new):
                        return self._tokenizer.encode(answer, special=False)
        return self._tokenizer.encode("Yes.", special=False)


def main() -> int:
    with open(os.environ["PARADECODE_SCRIPT"], encoding="utf-8") as file:
        scenes = json.load(file)
    opened: list[Checkpoint] = []

    def small(name: str | None) -> Checkpoint:
        """Open the model's tokenizer, with a configuration that takes no memory."""
        found = open_model(name)
        config = toy_config(found.config.vocab_size, CONTEXT)
        config = replace(config, name=found.config.name, eos_tokens=found.config.eos_tokens)
        opened.append(replace(found, config=config))
        return opened[-1]

    def backend(name: str, config: ModelConfig, weights: object, **_: Any) -> ScriptedBackend:
        return ScriptedBackend(config, opened[-1].tokenizer, scenes)

    llm.open_model, llm.open_backend = small, backend  # type: ignore[assignment]
    return worker.main()


if __name__ == "__main__":
    sys.exit(main())
