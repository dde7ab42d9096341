"""The step loop: collect what the live methods ask for, pack it, run it, hand out the replies."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import PAGE, Backend, Span, SpanResult
from paradecode.core.errors import BackendLost, CapacityError, DecoderError
from paradecode.core.layers import Layers
from paradecode.core.noise import MASK64, mix
from paradecode.core.request import TARGET, Apply, Forward, Store
from paradecode.core.vocabulary import Vocabulary
from paradecode.engine.cost import CostCurve
from paradecode.engine.live import Call, Live
from paradecode.engine.request import GenerationRequest
from paradecode.engine.resources import Limits as Limits
from paradecode.engine.resources import Resources
from paradecode.engine.scheduler import OUTPUT_WEIGHT, Queue, share_out
from paradecode.engine.sequence import LiveSequence
from paradecode.models.text_stream import NewTextStream

_log = logging.getLogger(__name__)


class Engine(Resources):
    """Runs many requests at once, each with its own method. Not thread-safe: one owner steps it.

    Attributes:
        queue: requests that wait.
        running: requests that take part in the steps.
        forwards: how many packed forwards were run, over all models.
    """

    def __init__(
        self,
        models: Mapping[str, Backend],
        limits: Limits | None = None,
        new_text: NewTextStream | None = None,
        curve: CostCurve | None = None,
        vocabularies: Mapping[str, Vocabulary] | None = None,
    ) -> None:
        super().__init__(models, limits, new_text, curve, vocabularies)
        self.queue = Queue()
        self.running: list[Live] = []
        self.forwards = 0
        self._unseeded = mix(time.time_ns() & MASK64)

    # What callers do.

    def add(self, request: GenerationRequest) -> LiveSequence:
        """Queue a request.

        Raises:
            InvalidInput: if the prompt or a parameter cannot be served by this model.
            CapacityError: if it could never fit into the K/V memory.
        """
        request.check(self.config, self.new_text is not None)
        if request.params.seed is None:
            self._unseeded = mix(self._unseeded)
            request = replace(request, params=replace(request.params, seed=self._unseeded))
        sequence = LiveSequence(request, self)
        live = Live(request, sequence, self)
        if live.reserved > self.pools[TARGET].count:
            raise CapacityError(
                f"prompt and max_tokens need {live.reserved * PAGE} K/V slots, the engine has "
                f"{self.pools[TARGET].count * PAGE}; lower max_tokens or raise kv_tokens"
            )
        self.queue.push(live)
        return sequence

    def step(self) -> list[LiveSequence]:
        """Run one packed forward per model that is asked for; returns sequences with news."""
        changed = self._expire()
        self._admit(changed)
        calls = [call for live in self.running for call in live.calls]
        for forwards in _by_model_and_layers(calls):
            self._run(share_out(forwards, self.limits.step_tokens), changed)
        self._apply(changed)
        for live in list(self.running):
            self._advance(live, changed)
        return changed

    def cancel(self, sequence: LiveSequence) -> None:
        """End a request now, with what it has; its pages are free when this returns."""
        for live in [*self.running, *self.queue.all()]:
            if live.sequence is sequence:
                self._end(live, "cancelled")

    @property
    def busy(self) -> bool:
        return bool(self.running or len(self.queue))

    def check(self) -> None:
        """Assert the page books: every page is free, idle or held by a live sequence."""
        for name, pool in self.pools.items():
            tables = [
                sequence.caches[name].pages
                for live in self.running
                for sequence in (live.sequence, *live.children)
                if name in sequence.caches
            ]
            pool.check(tables)

    def close(self) -> None:
        """Cancel everything and free the models."""
        for live in [*self.running, *self.queue.all()]:
            self._end(live, "cancelled")
        for backend in self.models.values():
            backend.close()

    # How a step works.

    def _admit(self, changed: list[LiveSequence]) -> None:
        while len(self.queue) and len(self.running) < self.limits.batch:
            live = self.queue.peek()
            if live.reserved > self.unreserved and self.running:
                return
            self.queue.pop()
            self.running.append(live)
            self.reserve(live.reserved)
            self._guard(live, live.start, changed)

    def _advance(self, live: Live, changed: list[LiveSequence]) -> None:
        def resume() -> None:
            commits = len(live.sequence.trace)
            live.advance()
            new = live.sequence.trace[commits:]
            if new:
                changed.append(live.sequence)
                served = sum(len(step.tokens) for step in new)
                self.queue.charge(live.request.salt, OUTPUT_WEIGHT * served)

        self._guard(live, resume, changed)
        if live.sequence.finished and live in self.running:
            self._end(live, live.sequence.finish_reason or "stop")

    def _guard(self, live: Live, action: Callable[[], object], changed: list[LiveSequence]) -> None:
        """Run a method's own code; whatever it raises ends that request and no other."""
        try:
            action()
        except Exception as error:
            self._fail(live, error, changed)

    def _fail(self, live: Live, error: Exception, changed: list[LiveSequence]) -> None:
        self._end(live, "error", error)
        changed.append(live.sequence)

    def _run(self, batch: Sequence[tuple[Call, int]], changed: list[LiveSequence]) -> None:
        planned = []
        for call, rows in batch:
            if call.live.sequence.finished:  # Another call of the same request has failed.
                continue
            try:
                part = call.part(rows)
                planned.append((call, part, call.plan(part)))
            except Exception as error:
                self._fail(call.live, error, changed)
        planned = [entry for entry in planned if not entry[0].live.sequence.finished]
        if not planned:
            return
        backend = planned[0][0].cache.backend
        started = time.perf_counter()
        try:
            results: Sequence[SpanResult | Exception] = backend.forward([s for _, _, s in planned])
        except BackendLost:
            raise  # No request can go on: whoever owns the engine must know.
        except Exception:
            # One bad span must not cost its neighbours their step: find out which it was.
            results = [_alone(backend, span) for _, _, span in planned]
        self.forwards += 1
        seconds = time.perf_counter() - started
        if not planned[0][0].drafts:
            self.load.sequences = len(planned)
            self.load.rows = sum(len(span.positions) for _, _, span in planned)
        for (call, part, _), result in zip(planned, results, strict=True):
            if call.live.sequence.finished:
                continue
            if isinstance(result, Exception):
                self._fail(call.live, result, changed)
                continue
            timer = call.live.sequence.timer
            if not call.drafts:
                timer.target += seconds
            else:
                timer.other += seconds
            try:
                call.receive(part, result)
            except Exception as error:
                self._fail(call.live, error, changed)

    def _apply(self, changed: list[LiveSequence]) -> None:
        """Run small modules, stacking the inputs of all sequences that use the same one."""
        groups: dict[object, list[tuple[Live, Apply]]] = {}
        for live in self.running:
            for apply in live.applies:
                alike = (id(apply.module), apply.inputs.shape[1:], apply.inputs.dtype)
                groups.setdefault(alike, []).append((live, apply))
        for group in groups.values():
            ends = np.cumsum([len(apply.inputs) for _, apply in group])[:-1]
            try:
                outputs = self._module(group[0][1], [apply.inputs for _, apply in group])
            except Exception:
                for live, apply in group:  # One bad input must not cost its neighbours theirs.
                    if not live.sequence.finished:
                        self._guard(live, partial(self._answer_alone, live, apply), changed)
                continue
            for (live, apply), rows in zip(group, np.split(outputs, ends), strict=True):
                live.answer(apply, rows)

    def _answer_alone(self, live: Live, apply: Apply) -> None:
        live.answer(apply, self._module(apply, [apply.inputs]))

    def _module(self, apply: Apply, inputs: list[NDArray[Any]]) -> NDArray[Any]:
        rows = np.concatenate(inputs)
        outputs = self.models[TARGET].apply(apply.module, rows)
        if len(outputs) != len(rows):
            raise DecoderError("a module must return one row for each input row")
        return outputs

    def _expire(self) -> list[LiveSequence]:
        expired, now = [], time.perf_counter()
        for live in [*self.running, *self.queue.all()]:
            deadline = live.request.deadline
            if deadline is not None and now - live.sequence.arrived > deadline:
                self._end(live, "deadline")
                expired.append(live.sequence)
        return expired

    def _end(self, live: Live, reason: str, error: Exception | None = None) -> None:
        if live in self.running:
            self.running.remove(live)
            self.reserve(-live.reserved)
            if not self.running:
                self.load.sequences = self.load.rows = 1
        else:
            self.queue.remove(live)
        live.sequence.finish(reason, error)
        live.close()
        late = live.sequence.late_error
        if late is not None:
            _log.warning("%s raised after its end", live.request.decoder, exc_info=late)


def _alone(backend: Backend, span: Span) -> SpanResult | Exception:
    try:
        return backend.forward([span])[0]
    except Exception as error:
        return error


def _by_model_and_layers(calls: Sequence[Call]) -> list[list[Call]]:
    """Calls that can share a forward: same model, same layers, one that writes a cache."""
    groups: dict[tuple[str, Layers | None, int], list[Call]] = {}
    seen: dict[int, tuple[int, bool]] = {}
    for call in calls:
        forward: Forward = call.forward
        writes = forward.store is not Store.NONE or len(forward.tree) > 0
        turn, alone = seen.get(id(call.cache), (-1, True))
        turn += alone or writes
        seen[id(call.cache)] = turn, writes
        groups.setdefault((forward.model, forward.layers, turn), []).append(call)
    return list(groups.values())
