"""Decodes a batch of inputs by one method, and returns timed, counted and checked records."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import numpy as np

from paradecode.core.sampling import SamplingParams
from paradecode.core.trace import DraftCounts
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.llm import LLM
from paradecode.methods.specs import Spec
from paradecode.timing.other_load import OtherLoad
from paradecode_lab.measure.clock import Clock, Clocked
from paradecode_lab.measure.prompts import Item
from paradecode_lab.measure.results import Counts, Record
from paradecode_lab.measure.serving import serve
from paradecode_lab.measure.turns import Unit

Check = Callable[[Item, str], bool | None]
"""(item, text of the output) -> whether the text is a right answer; None where this is unknown."""


PLAIN_COUNTS = tuple(field.name for field in fields(DraftCounts))


class _Watch:
    """The clocks of one request. The end of its prefill is noted, so that decoding counts alone."""

    def __init__(self, item: Item) -> None:
        self.item, self.clock = item, Clock()
        self._first: tuple[float, ...] | None = None

    def request(self, spec: Spec, sampling: SamplingParams, salt: str) -> GenerationRequest:
        return GenerationRequest(
            np.array(self.item.token_ids, np.int32), lambda: Clocked(spec, self.clock),
            replace(sampling, max_tokens=self.item.max_tokens), salt=salt,
        )  # fmt: skip

    def look(self, sequence: LiveSequence) -> None:
        """Note the clocks if the prefill has just ended."""
        if self._first is None and sequence.trace:
            self._first = self._clocks(sequence)

    def counts(self, sequence: LiveSequence) -> Counts:
        stats, clock, ended = sequence.stats, self.clock, self._clocks(sequence)
        target, draft, verify, sample = (b - a for a, b in zip(self._first or ended, ended))
        left = max(0.0, stats.decode_seconds - target - draft - verify - sample)
        own = {name: getattr(stats, name) for name in PLAIN_COUNTS}
        return Counts(
            **own, draft_forwards=clock.forwards, draft_rows=clock.rows,
            deciding=_deciding(sequence), target=target, draft=draft, verify=verify,
            sample=sample, other=left,
        )  # fmt: skip

    def _clocks(self, sequence: LiveSequence) -> tuple[float, float, float, float]:
        timer, clock = sequence.timer, self.clock
        return timer.target, timer.other + clock.draft, clock.verify, clock.sample


def play(
    llm: LLM, spec: Spec, unit: Unit, sampling: SamplingParams, check: Check, salt: str = ""
) -> list[Record]:
    """Decode one batch by one method, and return a record for each item.

    Args:
        sampling: sampling parameters; ``max_tokens`` is taken from each item.
        check: called with each item and the text of its output.
        salt: the tenant; a method shares what it learns only with requests of the same tenant.

    Raises:
        Exception: the error that ended a request.
    """
    watches = [_Watch(item) for item in unit.items]

    def look(sequences: Sequence[LiveSequence]) -> None:
        for watch, sequence in zip(watches, sequences):
            watch.look(sequence)

    load = OtherLoad()
    requests = [watch.request(spec, sampling, salt) for watch in watches]
    sequences = serve(llm.engine, requests, look)
    seconds, others = load.look()
    for sequence in sequences:
        if sequence.error is not None:
            raise sequence.error
    empty = Record(
        str(spec), "", unit.round, other_load=others, batch=unit.batch, unit=unit.number,
        wall_seconds=seconds / unit.batch,
    )  # fmt: skip
    return [_record(empty, *each, check) for each in zip(watches, sequences)]


def _record(empty: Record, watch: _Watch, sequence: LiveSequence, check: Check) -> Record:
    stats, right = sequence.stats, check(watch.item, sequence.text.value)
    return replace(
        empty,
        item=watch.item.id,
        token_ids=tuple(map(int, sequence.output)),
        first_tokens=stats.first_tokens,
        prefill_seconds=stats.queue_seconds + stats.prefill_seconds,
        decode_seconds=stats.decode_seconds,
        right=right,
        counts=watch.counts(sequence),
        text="" if right is None else sequence.text.value,
    )


def _deciding(sequence: LiveSequence) -> int:
    """Return how many forwards of a canvas decided a token of the output."""
    length = len(sequence.output)
    steps = [(step.forward, step.canvas) for step in sequence.trace]
    return len({n for n, canvas in steps if canvas and any(at < length for at in canvas.offsets)})
