"""Several steps of one sequence in one call of the backend, while it has the engine to itself."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import MakesSteps, StepsInput
from paradecode.core.multi_step import MultiStep
from paradecode.core.request import TARGET
from paradecode.engine.cost import STEP
from paradecode.engine.resources import Resources
from paradecode.engine.sequence import LiveSequence

SECONDS = 0.02
"""After these no further step begins: so long a new request or a cancellation may wait."""
AHEAD = 64
"""Tokens beyond a draft for which a call finds pages."""


class PendingSteps:
    """Several steps that a method asks for, again and again with the same request.

    Attributes:
        asked: the request.
        able: whether the backend can make such steps at all.
        reply: how many were made; None until it is known.
        error: always None; what fails raises at once.
    """

    error: None = None

    def __init__(self, asked: MultiStep, sequence: LiveSequence, resources: Resources) -> None:
        backend = resources.models[TARGET]
        self._stepper = backend.stepper(asked) if isinstance(backend, MakesSteps) else None
        self.asked, self._sequence, self._load = asked, sequence, resources.load
        self._most = 0 if asked.lookup is None else asked.lookup.most
        self._measured = asked.lookup is not None and resources.load.curve is not None
        self.able = self._stepper is not None and self._most <= resources.limits.draft_tokens
        self._stops = np.array(sorted(sequence.stops), np.int32)
        self._seconds: dict[int, list[float]] = {}
        self.reply: int | None = None

    def run(self) -> int:
        """Make the steps and commit them; returns how many there were."""
        assert self._stepper is not None
        sequence, cache = self._sequence, self._sequence.caches[TARGET]
        text, room = sequence.tokens, sequence.room
        ahead = min(AHEAD + self._most, room)
        cache.own(np.arange(cache.length, cache.length + ahead, dtype=np.int32))
        first = len(text) // STEP
        given = StepsInput(
            text=text,
            pages=np.array(cache.pages, np.int32),
            room=room,
            stops=self._stops,
            warp=sequence.sampler.warp,
            seed=sequence.sampler.seed,
            limit=SECONDS,
            seconds=self._costs(range(first, (len(text) + ahead) // STEP + 1)),
            first_context=first,
        )
        begun = time.perf_counter()
        steps = self._stepper.run(given)
        if steps:
            sequence.follow(steps, begun)
            self._load.rows = 1 + len(steps[-1].drafted)
        self.reply = len(steps)
        return len(steps)

    def _costs(self, contexts: range) -> NDArray[np.float64] | None:
        """float64 [C, 1 + most]: what a step takes, as methods are told."""
        if not self._measured:
            return None
        load = self._load
        for context in contexts:
            if context not in self._seconds:
                self._seconds[context] = [
                    load.seconds(TARGET, rows, load.rows, context * STEP) or 0.0
                    for rows in range(1, self._most + 2)
                ]
        return np.array([self._seconds[context] for context in contexts])
