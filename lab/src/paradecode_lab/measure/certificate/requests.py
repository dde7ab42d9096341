"""Runs requests through the user's own engine, and forwards of the model without the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
from paradecode_lab.measure import serving


def request(
    prompt: Sequence[int], make: Callable[[], Decoder], params: SamplingParams, salt: str = ""
) -> GenerationRequest:
    """Build a request that ``make``'s decoder decodes for the tenant ``salt``."""
    return GenerationRequest(np.array(prompt, np.int32), make, params, salt=salt)


def serve(
    engine: Engine,
    requests: Sequence[GenerationRequest],
    ended: Callable[[], None] = lambda: None,
    enough: int | None = None,
) -> list[LiveSequence]:
    """Run requests until all have ended, as many at a time as the engine's limits allow.

    Args:
        ended: called once for each request that has ended.
        enough: number of output tokens after which a request is cancelled; None lets it end by
            itself.

    Raises:
        InvalidInput, CapacityError: a request cannot be served at all. Sequences hold all other
            errors.
    """

    reported = 0

    def after_step(sequences: Sequence[LiveSequence]) -> None:
        nonlocal reported
        for sequence in sequences:
            if enough is not None and len(sequence.output) >= enough and not sequence.finished:
                engine.cancel(sequence)
        over = sum(sequence.finished for sequence in sequences)
        for _ in range(over - reported):
            ended()
        reported = over

    sequences = serving.serve(engine, requests, after_step)
    for sequence in sequences:
        if isinstance(sequence.error, (InvalidInput, CapacityError)):
            raise sequence.error
    return sequences


@contextmanager
def running(engine: Engine, costs: bool = True, **limits: Any) -> Iterator[None]:
    """Run the engine with other limits inside a ``with`` block, and restore its own afterwards.

    Args:
        costs: False hides what a forward costs, so that the budget ``auto`` verifies every draft
            and no decision depends on measured times.
        limits: fields of :class:`paradecode.engine.engine.Limits`, but not the size of its memory.
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
    """Return the logits after ``tokens[:n]`` for each n in ``lengths``, one row per length.

    One forward of the backend computes the whole text. It neither reads nor writes the cache, and
    needs no engine, page or tree. Lengths are from 1 to ``len(tokens)``.
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
