"""The toy with a placeholder, and requests to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from paradecode.backends.interface import Backend
from paradecode.core.decoder import TARGET
from paradecode.core.sampling import SamplingParams
from paradecode.engine.sequence import LiveSequence
from paradecode.methods.specs import parse
from paradecode.testing.cases import PROMPTS
from paradecode.testing.harness import Bench, Job, Run, Subject, limits_of
from paradecode.testing.machines import CONTEXT, KINDS, Kind
from paradecode.testing.toy import ToyBackend, toy_config

Factory = Callable[[Kind], Mapping[str, Backend]]
MASK = 28
TEXTS = (*PROMPTS, (9, 8, 7))
PARAMS = (
    SamplingParams(max_tokens=24),
    SamplingParams(max_tokens=17, temperature=0.9, seed=5),
    SamplingParams(max_tokens=9, temperature=1.2, top_k=9, seed=6),
)


class Silent(ToyBackend):
    """Never says the placeholder by itself, so plain decoding needs no ban."""

    def head(self, states, tokens):
        logits = super().head(states, tokens)
        logits[:, MASK] = -30.0
        return logits


def toy(kind: Kind = KINDS[0], made: type[ToyBackend] = ToyBackend) -> dict[str, Backend]:
    """Often surprised, so that placeholders differ."""
    return {TARGET: made(toy_config(29, CONTEXT, masked=True), surprise=900)}


def silent(kind: Kind) -> dict[str, Backend]:
    return toy(kind, Silent)


def outputs(spec: str, factory: Factory, batch: int, jobs: Sequence[Job]) -> list[LiveSequence]:
    """The requests through an engine that runs so many at the same time."""
    known = parse(spec)
    run = Run("own", Subject(spec, known, known.guarantee), Bench(KINDS[0], factory))
    return run.serve(jobs, limits_of(batch=batch, step_tokens=64))


def requests() -> list[Job]:
    return [Job(tuple(map(int, text)), params) for text in TEXTS for params in PARAMS]


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()
