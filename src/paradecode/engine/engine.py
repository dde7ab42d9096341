"""The step loop: collect the forwards that methods request, pack and run them, and send replies."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from paradecode.backends.interface import PAGE, MakesSteps, drafts_of
from paradecode.core.decoder import TARGET
from paradecode.core.errors import CapacityError
from paradecode.core.head import Head
from paradecode.core.multi_step import StepsMade
from paradecode.core.network import Network
from paradecode.core.noise import MASK64, mix
from paradecode.engine.cost import CostCurve
from paradecode.engine.forward import (
    PendingApply,
    PendingForward,
    PendingOverlap,
    beside,
    by_model_and_layers,
    rows_by_owner,
    run_sides,
    run_together,
)
from paradecode.engine.kv import KVCache
from paradecode.engine.live import Live
from paradecode.engine.multi_step import make_steps
from paradecode.engine.request import GenerationRequest
from paradecode.engine.resources import Limits as Limits
from paradecode.engine.resources import Resources
from paradecode.engine.scheduler import (
    KEPT_FREE,
    OUTPUT_WEIGHT,
    Queue,
    share_out,
    shared_out,
    spare_rows,
)
from paradecode.engine.sequence import LiveSequence
from paradecode.engine.signals import delayed_signals, uninterrupted

_log = logging.getLogger(__name__)


PAUSE = 0.002
"""Seconds that a step sleeps if every request waits for something outside of the engine.

A longer pause uses less processor time, and notices the result later.
"""


class Engine(Resources):
    """Runs many requests at once, each with its own method. Not thread-safe: one owner steps it.

    Attributes:
        queue: requests that wait for admission.
        running: requests that take part in the steps.
        forwards: number of packed forwards that were run, over all models.
        inside: True while an operation of the engine is running.
    """

    def __post_init__(self, curve: CostCurve | None, measured: bool) -> None:
        super().__post_init__(curve, measured)
        self.queue: Queue[Live] = Queue()
        self.running: list[Live] = []
        self.forwards = 0
        self.inside = False
        self._dropped: deque[LiveSequence] = deque()
        self._debts: dict[str, int] = {}
        self._unseeded = mix(time.time_ns() & MASK64)

    # Methods for callers.

    def add(self, request: GenerationRequest) -> LiveSequence:
        """Queue a request, and return its sequence.

        Raises:
            InvalidInput: if this model cannot serve the prompt or a parameter.
            CapacityError: if the request could never fit into the K/V memory.
        """
        sequence = None
        try:
            with delayed_signals():
                sequence = self._queued(request)
        except BaseException:
            if sequence is not None:  # Ctrl-C came, so no caller has it.
                self.cancel(sequence)
            raise
        return sequence

    @uninterrupted
    def _queued(self, request: GenerationRequest) -> LiveSequence:
        request.check(self.config, self.new_text is not None)
        request = self.seeded(request)
        sequence = LiveSequence(request, self)
        live = Live(request, sequence, self)
        if live.reserved > self.pools[TARGET].count:
            raise CapacityError(
                f"prompt and max_tokens need {live.reserved * PAGE} K/V slots, the engine has "
                f"{self.pools[TARGET].count * PAGE}; lower max_tokens or raise kv_tokens"
            )
        self.queue.push(live)
        return sequence

    def seeded(self, request: GenerationRequest) -> GenerationRequest:
        """Return the request, with a new seed if it has none."""
        if request.params.seed is not None:
            return request
        self._unseeded = mix(self._unseeded)
        return replace(request, params=replace(request.params, seed=self._unseeded))

    @uninterrupted
    def step(self) -> list[LiveSequence]:
        """Run one step: at most one packed forward pass for each model and selection of layers.

        Returns:
            The sequences that have new output or have ended.
        """
        changed: list[LiveSequence] = []
        self._expire(changed)
        self._admit(changed)
        self._make_steps(changed)
        self._apply(changed)
        beside = [one for live in self.running for one in live.beside] if self.apart else []
        sides = [overlap.side for overlap in beside]
        asked = [one for live in self.running for one in live.forwards if one not in sides]
        if not asked and any(live.waits for live in self.running):
            time.sleep(PAUSE)
        drafting = sum(live.drafting for live in self.running)
        rows, ran = rows_by_owner(asked), Counter[KVCache]()
        for group in by_model_and_layers(asked):
            self._run(group, rows, ran, [one for one in beside if one.forward in group])
        if ran:
            # Requests that only drafted in this step will have a target row again.
            self.load.sequences, self.load.rows = len(ran) + drafting, ran.total() + drafting
        self.load.together = all(live.able for live in self.running)
        for live in list(self.running):
            self._advance(live, changed)
        return changed

    @uninterrupted
    def cancel(self, sequence: LiveSequence) -> None:
        """End a request now, with its output so far; its pages are free when this returns."""
        for live in [*self.running, *self.queue.all()]:
            if live.sequence is sequence:
                self._end(live, "cancelled")

    def drop(self, sequence: LiveSequence) -> None:
        """Cancel a request: at once if the engine is idle, else before the running operation ends.

        Finalizers call this, at any moment and in any thread.
        """
        self._dropped.append(sequence)

    def settle(self) -> None:
        """Cancel the requests that were dropped, unless an operation is running."""
        while self._dropped and not self.inside:
            self.cancel(self._dropped.popleft())

    @property
    def busy(self) -> bool:
        return bool(self.running or self.queue.size)

    def check(self) -> None:
        """Assert that the pages are accounted for: each is free, idle or held by live sequences."""
        for name, pool in self.pools.items():
            caches = [
                sequence.caches[name]
                for live in self.running
                for sequence in (live.sequence, *live.children)
                if name in sequence.caches
            ]
            for number, kind in enumerate(pool.kinds):
                kind.check([cache.tables[number].pages for cache in caches])
            if name in self.states:
                held = [cache.recalled.held() for cache in caches if cache.recalled is not None]
                self.states[name].records.check([records for records, _ in held])
                self.states[name].states.check([states for _, states in held])

    @uninterrupted
    def close(self) -> None:
        """Cancel all requests and free the models."""
        for live in [*self.running, *self.queue.all()]:
            self._end(live, "cancelled")
        for backend in self.models.values():
            backend.close()
        if self.heads is not None:
            self.heads.close()

    # Internals of a step.

    def _expire(self, changed: list[LiveSequence]) -> None:
        now = time.perf_counter()
        for live in [*self.running, *(self.queue.all() if self.queue.size else ())]:
            deadline = live.request.deadline
            if deadline is not None and now - live.sequence.arrived > deadline:
                self._end(live, "deadline")
                changed.append(live.sequence)

    def _admit(self, changed: list[LiveSequence]) -> None:
        while self.queue.size and len(self.running) < self.limits.batch:
            live = self.queue.peek(self._has_room)
            if live is None or (live.reserved > self.unreserved and self.running):
                return
            self.queue.pop(live)
            self.running.append(live)
            coming = min(len(self.running) + self.queue.size, self.limits.batch)
            self.load.sequences = max(self.load.sequences, coming)
            self.reserve(live.reserved)
            try:
                live.start()
            except Exception as error:  # The method's own code: it ends this request only.
                self._end(live, "error", error)
            if live.sequence.finished:  # The resumed tokens may have ended it.
                changed.append(live.sequence)

    def _has_room(self, live: Live) -> bool:
        """Return whether a request leaves batch places and memory for other request owners."""
        owner = live.request.owner
        own = [other.reserved for other in self.running if other.request.owner == owner]
        pages = self.pools[TARGET].count
        few = len(own) + 1 <= self.limits.batch - self.limits.batch // KEPT_FREE
        most = pages - pages // KEPT_FREE
        return not (owner and own) or (few and sum(own) + live.reserved <= most)

    def _make_steps(self, changed: list[LiveSequence]) -> None:
        """Make several steps in one call if all requests ask for it; else each method steps."""
        waiting = [steps for live in self.running if (steps := live.steps) is not None]
        backend = self.models[TARGET]
        if waiting and len(waiting) == len(self.running) and isinstance(backend, MakesSteps):
            cost = partial(self.load.of_step, TARGET)
            spare = spare_rows([one.sequence for one in waiting], self.limits.step_tokens, cost)
            if min(spare.values()) >= 0:
                self.forwards += make_steps(waiting, spare, backend, self.load, self.correction)
                return
        for live in list(self.running):
            if live.steps is not None:  # Each method makes its own step.
                live.leave_steps()
                live.steps.reply = StepsMade()
                self._advance(live, changed)

    def _advance(self, live: Live, changed: list[LiveSequence]) -> None:
        sequence = live.sequence
        try:
            live.advance()
        except Exception as error:  # The method's own error ends only this request.
            self._end(live, "error", error)
            changed.append(sequence)
            return
        if len(sequence.trace) > live.told:
            changed.append(sequence)
            owner, served = live.request.owner, self.queue.served
            if owner in served:
                tokens = sum(len(step.tokens) for step in sequence.trace[live.told :])
                served[owner] += OUTPUT_WEIGHT * tokens
            live.told = len(sequence.trace)
        if sequence.finished and not live.waits:
            self._end(live, sequence.finish_reason or "stop")

    def _run(
        self, group: list[PendingForward], rows: Mapping[str, int], ran: Counter[KVCache],
        overlaps: Sequence[PendingOverlap] = (),
    ) -> None:  # fmt: skip
        """Run a packed forward pass, and meanwhile the generators of its overlaps."""

        def sides(going: Callable[[], bool]) -> None:
            run_sides(overlaps, lambda asked: self._run(asked, rows_by_owner(asked), ran), going)

        around = partial(beside, meanwhile=sides) if overlaps else None
        made = run_together(self._chosen(group, rows), ran, around)
        self.forwards += made

    def _chosen(
        self, forwards: list[PendingForward], asked: Mapping[str, int]
    ) -> list[tuple[PendingForward, int]]:
        """Choose the forward passes that run in this step, and the number of rows of each.

        Args:
            asked: request owner -> rows of all the owner's forwards in this step.
        """
        budget = self.limits.step_tokens
        if len(asked) > 1:
            cost = partial(self.load.of_step, forwards[0].forward.model)
            return shared_out(forwards, budget, min(asked.values()), cost, self._debts)
        if sum(forward.rows for forward in forwards) <= budget:
            return [(forward, forward.rows) for forward in forwards]
        return share_out(forwards, budget)

    def _apply(self, changed: list[LiveSequence]) -> None:
        """Run small networks, each once for all sequences that request it, until none is left.

        They run before the models' forward passes. So a sequence that drafts with a head can verify
        its draft in the same forward of the target as the other sequences.
        """
        while asking := [live for live in self.running if live.applies]:
            groups: dict[Network | Head, list[PendingApply]] = {}
            for pending in (one for live in asking for one in live.applies):
                groups.setdefault(pending.network, []).append(pending)
            for network, group in groups.items():
                try:
                    self._reply(network, group)
                except Exception:  # One bad input must not fail others.
                    for pending in group:
                        try:
                            self._reply(network, [pending])
                        except Exception as error:
                            pending.error = error
            for live in asking:
                self._advance(live, changed)

    def _reply(self, network: Network | Head, group: Sequence[PendingApply]) -> None:
        inputs: list[Any] = [pending.inputs for pending in group]
        outputs: Any
        started = time.perf_counter()
        if isinstance(network, Head):
            outputs = drafts_of(self.heads or self.models[TARGET], network, inputs)
        else:
            outputs = self.models[TARGET].apply(network, inputs)
        seconds = time.perf_counter() - started
        for pending, reply in zip(group, outputs, strict=True):
            pending.reply = reply
            pending.owner.timer.other += seconds

    def _end(self, live: Live, reason: str, error: Exception | None = None) -> None:
        if live in self.running:
            self.running.remove(live)
            self.reserve(-live.reserved)
            if all(one.request.owner != live.request.owner for one in self.running):
                self._debts.pop(live.request.owner, None)
            if not self.running:
                self.load.sequences = self.load.rows = 1
        else:
            self.queue.remove(live)
        live.sequence.finish(reason, error)
        live.close()
        late = live.sequence.late_error
        if late is not None:
            _log.warning("%s raised after its end", live.request.decoder, exc_info=late)


# A loop that steps the engine until all given requests have ended.


def run(
    engine: Engine,
    requests: Sequence[GenerationRequest],
    progress: Callable[[int, int], None] = lambda ended, total: None,
) -> list[LiveSequence]:
    """Run requests until all have ended, and return their sequences.

    Args:
        progress: called after each step with the number of ended requests and the number of all.

    Raises:
        InvalidInput: if a request was refused.
    """
    sequences: list[LiveSequence] = []
    try:
        for request in requests:
            sequences.append(engine.add(request))
        while any(not sequence.finished for sequence in sequences):
            engine.step()
            progress(sum(sequence.finished for sequence in sequences), len(sequences))
    finally:  # Ctrl-C, or a prompt that was refused, leaves nothing behind.
        with delayed_signals():
            for sequence in sequences:
                engine.cancel(sequence)
    return sequences
