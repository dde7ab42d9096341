"""A batch of prompts by one decoder: timed, counted, checked."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import numpy as np

from paradecode.core.sampling import SamplingParams
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.llm import LLM
from paradecode.measure.answers import is_right
from paradecode.measure.machine import busy_seconds
from paradecode.measure.prompts import Item
from paradecode.measure.results import Counts, Record
from paradecode.measure.suites.generation.clock import Clock, Clocked
from paradecode.methods.registry import Spec


@dataclass(frozen=True)
class Unit:
    """What runs together.

    Attributes:
        number: of its kind, from 0.
        items: as many as the batch has requests.
        answers: item id -> what is right, for those that can be checked.
    """

    number: int
    items: tuple[Item, ...]
    answers: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; 0 is greedy."""

    temperature: float = 0.0
    seed: int = 0


class _Request:
    """One request on its way, and what its clocks said when its first tokens were there."""

    def __init__(self, llm: LLM, spec: Spec, item: Item, sampling: Sampling, salt: str) -> None:
        self.item, self.clock = item, Clock()
        params = SamplingParams(
            max_tokens=item.max_tokens, temperature=sampling.temperature, seed=sampling.seed
        )
        request = GenerationRequest(
            np.array(item.token_ids, np.int32), lambda: Clocked(spec, self.clock), params, salt=salt
        )
        self.sequence: LiveSequence = llm.engine.add(request)
        self._first: tuple[float, ...] | None = None

    def look(self) -> None:
        """Note the clocks once the prefill is over."""
        if self._first is None and self.sequence.trace:
            self._first = self._clocks()

    def counts(self) -> Counts:
        stats, clock = self.sequence.stats, self.clock
        first = self._first or self._clocks()
        target, draft, verify, sample = (now - then for now, then in zip(self._clocks(), first))
        return Counts(
            **{**stats.counts(), "accepted_per_position": stats.accepted_per_position},
            draft_forwards=clock.forwards,
            draft_rows=clock.rows,
            target=target,
            draft=draft,
            verify=verify,
            sample=sample,
            other=max(0.0, stats.decode_seconds - target - draft - verify - sample),
        )

    def _clocks(self) -> tuple[float, float, float, float]:
        timer, clock = self.sequence.timer, self.clock
        return timer.target, timer.other + clock.draft, clock.verify, clock.sample


def play(
    llm: LLM, spec: Spec, unit: Unit, sampling: Sampling, salt: str, round: int = 0
) -> list[Record]:
    """Answers of one decoder to one batch.

    Args:
        salt: tenant; a method that learns shares what it learned with the same tenant only.

    Raises:
        Exception: what ended a request.
    """
    engine = llm.engine
    busy, own, started = busy_seconds(), _own_seconds(), time.perf_counter()
    requests: list[_Request] = []
    try:
        for item in unit.items:
            requests.append(_Request(llm, spec, item, sampling, salt))
        while any(not request.sequence.finished for request in requests):
            engine.step()
            for request in requests:
                request.look()
    finally:  # Ctrl-C leaves no request behind.
        for request in requests:
            engine.cancel(request.sequence)
    seconds = time.perf_counter() - started
    others = None
    if busy is not None and (after := busy_seconds()) is not None:
        others = max(0.0, after - busy - (_own_seconds() - own)) / seconds
    for request in requests:
        if request.sequence.error is not None:
            raise request.sequence.error
    batch = len(unit.items)
    return [
        _record(str(spec), request, unit, round, seconds / batch, others) for request in requests
    ]


def _record(
    name: str, request: _Request, unit: Unit, round: int, wall: float, others: float | None
) -> Record:
    sequence, stats = request.sequence, request.sequence.stats
    answers = unit.answers.get(request.item.id)
    return Record(
        engine=name,
        item=request.item.id,
        round=round,
        token_ids=tuple(sequence.output),
        first_tokens=stats.first_tokens,
        prefill_seconds=stats.queue_seconds + stats.prefill_seconds,
        decode_seconds=stats.decode_seconds,
        other_load=others,
        batch=len(unit.items),
        unit=unit.number,
        wall_seconds=wall,
        right=is_right(sequence.text.value, answers) if answers else None,
        counts=request.counts(),
    )


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system
