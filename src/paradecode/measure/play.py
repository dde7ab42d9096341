"""A batch of inputs by one method: timed, counted, checked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import fields, replace

import numpy as np

from paradecode.core.sampling import SamplingParams
from paradecode.core.trace import DraftCounts
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.llm import LLM
from paradecode.measure.clock import Clock, Clocked
from paradecode.measure.machine import busy_seconds
from paradecode.measure.prompts import Item
from paradecode.measure.results import Counts, Record
from paradecode.measure.turns import Unit
from paradecode.methods.registry import Spec

Check = Callable[[Item, str], bool | None]
"""(item, output's text) -> whether it is right; None where that is not known."""


PLAIN_COUNTS = tuple(field.name for field in fields(DraftCounts))


class _Request:
    """One request on its way, and what its clocks said when its first tokens were there."""

    def __init__(
        self, llm: LLM, spec: Spec, item: Item, sampling: SamplingParams, salt: str
    ) -> None:
        self.item, self.clock = item, Clock()
        request = GenerationRequest(
            np.array(item.token_ids, np.int32), lambda: Clocked(spec, self.clock),
            replace(sampling, max_tokens=item.max_tokens), salt=salt,
        )  # fmt: skip
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
        left = max(0.0, stats.decode_seconds - target - draft - verify - sample)
        own = {name: getattr(stats, name) for name in PLAIN_COUNTS}
        return Counts(
            **own, draft_forwards=clock.forwards, draft_rows=clock.rows, deciding=self._deciding(),
            target=target, draft=draft, verify=verify, sample=sample, other=left,
        )  # fmt: skip

    def _deciding(self) -> int:
        """Forwards that decided a token of the output, of a canvas."""
        length = len(self.sequence.output)
        steps = [step for step in self.sequence.trace if step.canvas is not None]
        return len(
            {s.forward for s in steps if s.canvas and any(at < length for at in s.canvas.offsets)}
        )

    def _clocks(self) -> tuple[float, float, float, float]:
        timer, clock = self.sequence.timer, self.clock
        return timer.target, timer.other + clock.draft, clock.verify, clock.sample


def play(
    llm: LLM, spec: Spec, unit: Unit, sampling: SamplingParams, check: Check, salt: str = ""
) -> list[Record]:
    """Answers of one method to one batch.

    Args:
        sampling: all but ``max_tokens``, which is the item's.
        check: told each output.
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
    empty = Record(
        str(spec), "", unit.round, other_load=others, batch=unit.batch, unit=unit.number,
        wall_seconds=seconds / unit.batch,
    )  # fmt: skip
    return [_record(empty, request, check) for request in requests]


def _record(empty: Record, request: _Request, check: Check) -> Record:
    item, sequence = request.item, request.sequence
    stats, right = sequence.stats, check(item, sequence.text.value)
    return replace(
        empty,
        item=item.id,
        token_ids=tuple(map(int, sequence.output)),
        first_tokens=stats.first_tokens,
        prefill_seconds=stats.queue_seconds + stats.prefill_seconds,
        decode_seconds=stats.decode_seconds,
        right=right,
        counts=request.counts(),
        text="" if right is None else sequence.text.value,
    )


def _own_seconds() -> float:
    times = os.times()
    return times.user + times.system
