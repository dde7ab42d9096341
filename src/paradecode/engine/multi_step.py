"""Several steps in one call of the backend, if all sequences of the batch can make such steps.

The native core makes the steps in csrc/steps.cpp.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import CommittedStep, MakesSteps, StatePages, StepsInput
from paradecode.core.decoder import TARGET
from paradecode.core.errors import DecoderError
from paradecode.core.multi_step import MultiStep, StepsMade
from paradecode.engine.cost import CostCorrection, Load
from paradecode.engine.kv import KVCache
from paradecode.engine.lowering import page_tables
from paradecode.engine.resources import AHEAD, Resources
from paradecode.engine.sequence import LiveSequence

SECONDS = 0.02
"""Seconds after which a call begins no further step.

A higher value makes new requests and cancellations wait longer.
"""
OVERHEAD = 2e-5, 3e-5, 2e-5
"""Seconds of a step outside of the forward pass, if the backend makes the step.

The numbers are for the step itself, for each sequence, and for a sequence's draft. They were
estimated from batches of 1 to 64 sequences.
"""


class PendingSteps:
    """A method's request for several steps. The method repeats it with the same object.

    Attributes:
        asked: the method's request.
        sequence: the sequence whose method made the request.
        stepper: the backend's object for this sequence; None if the backend cannot make the steps.
        entered: True if the backend has the sequence's current tokens.
        reply: the reply to the method; None before it is known.
        error: the exception because of which there will be no reply.
    """

    def __init__(self, asked: MultiStep, sequence: LiveSequence, resources: Resources) -> None:
        backend, sampler = resources.models[TARGET], sequence.sampler
        self.asked, self.sequence = asked, sequence
        self._most = 0 if asked.lookup is None else asked.lookup.most
        self.stepper = None
        fits = self._most <= resources.limits.draft_tokens
        if isinstance(backend, MakesSteps) and fits and sequence.simple:
            stops = np.array(sorted(sequence.stops), np.int32)
            scored = sequence.params.logprobs is not None
            self.stepper = backend.stepper(asked, stops, sampler.warp, sampler.seed, scored)
        self.entered, self._owned = False, 0
        self._hidden: tuple[int, ...] = ()
        self.reply: StepsMade | None = None
        self.error: Exception | None = None

    def enter(self) -> None:
        """Give the sequence's tokens and pages to the backend, which then makes the next steps."""
        assert self.stepper is not None
        sequence, cache = self.sequence, self.sequence.caches[TARGET]
        if not self.entered:
            steps = self.asked.steps
            most = sequence.room if steps is None else steps()
            self._hidden = () if self.asked.hidden is None else self.asked.hidden()
            layers = [layer % cache.backend.config.layers for layer in self._hidden]
            self.stepper.enter(sequence.tokens, sequence.room, most, sequence.last_rows, layers)
            self.entered, self._owned = True, 0
        wanted = cache.length + min(1 + self._most, sequence.room)
        if wanted > self._owned or not (cache.recalled is None or cache.recalled.owns_slots):
            self._owned = cache.length + min(AHEAD + self._most, sequence.room)
            cache.own(np.arange(cache.length, self._owned, dtype=np.int32))
            self.stepper.hold(*page_tables(cache), *self._states(cache))

    def _states(self, cache: KVCache) -> tuple[StatePages | None, Sequence[int]]:
        if cache.recalled is None:
            return None, ()
        return cache.recalled.hold(cache.length, self._owned)

    def follow(self, steps: Sequence[CommittedStep], begun: float) -> None:
        """Commit the steps of a call of the backend that began at ``begun``; there may be none."""
        hidden: dict[int, NDArray[np.float32]] = {}
        if steps:
            self.sequence.follow(steps, begun)
            recalled = self.sequence.caches[TARGET].recalled
            if recalled is not None and self.stepper is not None:
                recalled.follow(*self.stepper.state)
            rows = [step.hidden for step in steps if step.hidden is not None]
            if rows:
                parts = np.split(np.concatenate(rows), len(self._hidden), axis=1)
                hidden = dict(zip(self._hidden, parts))
        else:
            self.leave()
        self.reply = StepsMade(len(steps), hidden)

    def leave(self) -> None:
        """Give the method the state that the backend has updated."""
        assert self.stepper is not None
        self.entered = False
        self.stepper.leave()


def make_steps(
    waiting: Sequence[PendingSteps], spare: Mapping[str, int], backend: MakesSteps, load: Load,
    correction: CostCorrection | None = None,
) -> int:  # fmt: skip
    """Make steps of all sequences together and commit them; return the number of steps.

    If a method's own code fails before the steps, only its request ends. If the backend fails, all
    requests end, because their progress is unknown.

    Args:
        spare: request owner -> draft rows that a step may have for the owner's sequences.
        correction: corrects the load's curve by the times of the forward passes.
    """
    for pending in waiting:
        try:
            pending.enter()
        except Exception as error:
            pending.error = error
    if any(pending.error is not None for pending in waiting):
        for pending in waiting:
            if pending.error is None:
                pending.follow([], 0.0)
        return 0
    begun = time.perf_counter()
    owners = list(spare)
    given = StepsInput(
        curve=load.curve,
        overhead=OVERHEAD,
        sequences=load.sequences,
        rows=load.rows,
        spare=list(spare.values()),
        groups=[owners.index(pending.sequence.owner) for pending in waiting],
        limit=SECONDS,
    )
    steppers = [pending.stepper for pending in waiting if pending.stepper is not None]
    try:
        made = backend.steps(steppers, given)
        for pending, steps in zip(waiting, made, strict=True):
            pending.follow(steps, begun)
    except BaseException as error:
        lost = error if isinstance(error, Exception) else DecoderError("its step was broken off")
        for pending in waiting:
            if pending.reply is None:
                pending.error = lost
        if error is not lost:  # Raised by a signal's handler.
            raise
        return 0
    if count := len(made[0]):
        if correction is not None:
            rows = map(sum, zip(*([1 + _drafted(step) for step in steps] for steps in made)))
            context = sum(pending.sequence.caches[TARGET].length for pending in waiting)
            seconds = [step.forward for step in made[0]]
            correction.correct(load, zip(rows, seconds), context // len(waiting))
        load.sequences = len(waiting)
        load.rows = sum(pending.sequence.last_rows for pending in waiting)
    return count


def _drafted(step: CommittedStep) -> int:
    return 0 if step.drafted is None else len(step.drafted)
