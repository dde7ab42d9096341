"""Requests of several decoders through the user's own engine, and the model's rows beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from paradecode.backends.interface import Backend, Span
from paradecode.core.decoder import Decoder
from paradecode.core.errors import CapacityError, InvalidInput
from paradecode.core.logits import Logits
from paradecode.core.sampling import SamplingParams
from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence


@dataclass(frozen=True)
class Job:
    """One request."""

    prompt: tuple[int, ...]
    make: Callable[[], Decoder]
    params: SamplingParams
    salt: str = ""


def serve(
    engine: Engine,
    jobs: Sequence[Job],
    ended: Callable[[], None] = lambda: None,
    enough: int | None = None,
) -> list[LiveSequence]:
    """Run jobs to their ends, as many at a time as the engine's limits allow.

    Args:
        ended: called once for each job that has ended.
        enough: output tokens after which a job is cancelled; None waits for its own end.

    Raises:
        InvalidInput, CapacityError: when a job cannot be served at all; other errors stay in the
            sequences.
    """
    sequences: list[LiveSequence] = []
    reported = 0
    try:
        for job in jobs:
            prompt = np.array(job.prompt, np.int32)
            sequences.append(
                engine.add(GenerationRequest(prompt, job.make, job.params, salt=job.salt))
            )
        while engine.busy:
            for sequence in engine.step():
                if enough is not None and len(sequence.output) >= enough:
                    engine.cancel(sequence)
            over = sum(sequence.finished for sequence in sequences)
            for _ in range(over - reported):
                ended()
            reported = over
    finally:  # Ctrl-C leaves nothing behind.
        for sequence in sequences:
            engine.cancel(sequence)
    for sequence in sequences:
        if isinstance(sequence.error, (InvalidInput, CapacityError)):
            raise sequence.error
    return sequences


@contextmanager
def running(engine: Engine, costs: bool = True, **limits: Any) -> Iterator[None]:
    """The engine with other limits for a while.

    Args:
        costs: False hides what a forward costs, so that the budget ``auto`` verifies every draft
            and no decision depends on measured times.
        limits: fields of :class:`paradecode.engine.engine.Limits`, but not the memory's size.
    """
    before, curve, others = engine.limits, engine.load.curve, engine.load.others
    engine.limits = replace(before, **limits)
    if not costs:
        engine.load.curve, engine.load.others = None, {}
    try:
        yield
    finally:
        engine.limits, engine.load.curve, engine.load.others = before, curve, others


def rows_after(backend: Backend, tokens: Sequence[int], lengths: Sequence[int]) -> Logits:
    """What follows ``tokens[:n]`` for each n of ``lengths``, one row each.

    One forward over the whole text that neither reads nor writes the cache: no engine, no page, no
    tree. Lengths are from 1 to ``len(tokens)``.
    """
    count = len(tokens)
    span = Span(
        pages=np.empty(0, np.int32),
        tokens=np.asarray(tokens, np.int32),
        positions=np.arange(count, dtype=np.int32),
        slots=np.full(count, -1, np.int32),
        context=0,
        logits=np.asarray(lengths, np.int32) - np.int32(1),
    )
    return backend.forward([span])[0].logits
