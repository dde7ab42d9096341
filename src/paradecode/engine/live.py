"""A live request: its method's generator, and the replies for which it waits.

Three objects make up a request. :class:`~paradecode.engine.request.GenerationRequest` has the
caller's values and never changes. :class:`~paradecode.engine.sequence.LiveSequence` has the decoded
tokens, their keys and values, and the stage of the request in ``state``. :class:`Live` has the
method's generator and its pending requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Any

from paradecode.backends.interface import PAGE
from paradecode.core.decoder import Apply, Fork, Forward, Overlap, Store
from paradecode.core.errors import DecoderError
from paradecode.core.handoff import Handoff
from paradecode.core.multi_step import MultiStep, StepsMade
from paradecode.engine.forward import Pending, PendingApply, PendingForward, PendingOverlap, go_on
from paradecode.engine.multi_step import PendingSteps
from paradecode.engine.output import State
from paradecode.engine.request import GenerationRequest
from paradecode.engine.resources import Resources
from paradecode.engine.sequence import LiveSequence

MAX_FORKS = 64
"""Largest number of forks of a request that exist at the same time."""
MAX_FORKS_IN_A_ROW = 256
"""Number of forks that a decoder may request without another kind of request in between."""

MAX_IDLE_CALLS = 4096
"""Number of requests without a committed token after which a decoder counts as stuck."""


class Live:
    """A request in the engine: its method's generator, and the generator's pending requests.

    Attributes:
        reserved: number of pages reserved in each model for this request and its forks.
        told: number of steps of its trace that callers have received.
    """

    def __init__(
        self, request: GenerationRequest, sequence: LiveSequence, resources: Resources
    ) -> None:
        self.request, self.sequence, self._resources = request, sequence, resources
        self._generator = request.decoder().decode(sequence)
        self._pending: list[Pending | PendingOverlap | PendingSteps] = []
        self._steps: PendingSteps | None = None
        self._as_list = False
        self._idle = 0
        self.children: list[LiveSequence] = []
        constraint = request.constraint
        self._handoff = Handoff() if constraint is not None and constraint.waits else None
        self._own = resources.pages_for(request)
        # Forks of a prompt share the pages that it fills, unless a sliding window passes them.
        self._shares = self._own == resources.whole_pages(request)
        shared = sequence.prompt_length // PAGE if self._shares else 0
        self.reserved = self._own + request.forks * (self._own - shared)
        self.told = 0

    @property
    def forwards(self) -> list[PendingForward]:
        both = [part for one in self.overlaps for part in (one.forward, one.side)]
        asked = [*self._pending, *both]
        return [p for p in asked if isinstance(p, PendingForward) and p.reply is None]

    @property
    def drafting(self) -> bool:
        """True if the request waits only for draft work, and not for the target."""
        asked = self.forwards
        return bool(asked) and all(pending.drafts for pending in asked)

    @property
    def overlaps(self) -> list[PendingOverlap]:
        return [p for p in self._pending if isinstance(p, PendingOverlap)]

    @property
    def beside(self) -> list[PendingOverlap]:
        """The overlaps that may continue while a forward pass of the target runs."""
        if self._handoff is not None:  # A slow method would delay all others.
            return []
        return [overlap for overlap in self.overlaps if overlap.forward.reply is None]

    @property
    def applies(self) -> list[PendingApply]:
        asked = [p for p in self._pending if isinstance(p, PendingApply)]
        return [p for p in asked if p.reply is None and p.error is None]

    @property
    def steps(self) -> PendingSteps | None:
        """The steps that the method requested from the backend, if they are not made yet."""
        waiting = any(pending is self._steps for pending in self._pending)
        return self._steps if waiting and self._steps and self._steps.reply is None else None

    @property
    def waits(self) -> bool:
        """True if the method is waiting inside a slow call."""
        return self._handoff is not None and self._handoff.waits

    def start(self) -> None:
        self.sequence.admit()
        self._resume(None)

    def advance(self) -> None:
        """Resume the method if all its replies have arrived; raise a failed request's error."""
        if self._handoff is not None and self._handoff.waits:
            self._handoff.go_on()
            return
        ready = [overlap for overlap in self.overlaps if overlap.ready]
        if ready:
            self._call(partial(go_on, ready))
            if self.waits:
                return
        for pending in self._pending:
            if pending.error is not None:
                raise pending.error
        replies = [pending.reply for pending in self._pending]
        # The method receives steps that a backend made, even if they ended the output.
        goes_on = not self.sequence.finished or any(
            isinstance(reply, StepsMade) and reply.count for reply in replies
        )
        if goes_on and not any(reply is None for reply in replies):
            self._resume(replies if self._as_list else replies[0])

    def close(self) -> None:
        if self._handoff is not None:
            self._handoff.stop()
        late = [error for overlap in self.overlaps if (error := overlap.close()) is not None]
        self.sequence.late_error = self.sequence.late_error or next(iter(late), None)
        self._pending = []
        self.leave_steps()
        try:
            self._generator.close()
        except Exception as error:  # It raises, or yields once more.
            self.sequence.late_error = self.sequence.late_error or error
        for child in self.children:
            child.release()

    def _resume(self, answer: Any) -> None:
        self._call(lambda: self._send(answer))

    def _call(self, work: Callable[[], None]) -> None:
        """Run code of the method, which may have to wait."""
        if self._handoff is None:
            work()
        else:
            self._handoff.run(work)

    def _send(self, answer: Any) -> None:
        started = time.perf_counter()
        committed = len(self.sequence.trace)
        try:
            asked = self._generator.send(answer)
            forks = 0
            while isinstance(asked, Fork) or (
                isinstance(asked, MultiStep) and not self._may_step(asked)
            ):
                forks += 1
                if forks > MAX_FORKS_IN_A_ROW:
                    raise DecoderError(f"the decoder forked {MAX_FORKS_IN_A_ROW} times in a row")
                answer = self._fork(asked) if isinstance(asked, Fork) else StepsMade()
                asked = self._generator.send(answer)
        except StopIteration:
            if not self.sequence.finished:
                raise DecoderError("the decoder ended before the sequence was finished") from None
            asked = []
        self._idle = 0 if len(self.sequence.trace) > committed else self._idle + 1
        if self._idle > MAX_IDLE_CALLS:
            raise DecoderError(f"the decoder made {MAX_IDLE_CALLS} requests without a commit")
        self._as_list = isinstance(asked, list)
        requests = asked if isinstance(asked, list) else [asked]
        if not requests and not self.sequence.finished:
            raise DecoderError("the decoder asked for nothing")
        self._pending = [self._ask(request) for request in requests]
        self._check_conflicts()
        self.sequence.timer.decoder += time.perf_counter() - started

    @property
    def able(self) -> bool:
        """True if the method requests several steps and the backend can make them."""
        return self._steps is not None and self._steps.stepper is not None and not self.children

    def _may_step(self, asked: MultiStep) -> bool:
        """Return whether the backend can probably make several steps now.

        The backend may still refuse when it tries.
        """
        if self._steps is None or self._steps.asked is not asked:
            self._steps = PendingSteps(asked, self.sequence, self._resources)
        wanted = asked.steps is None or asked.steps() > 0
        if wanted and self.able and self._resources.load.together and self.sequence.regular:
            return True
        self.leave_steps()
        return False

    def leave_steps(self) -> None:
        """Let the method make the steps from now on, and give it the backend's updated state."""
        if self._steps is not None and self._steps.entered:
            self._steps.leave()

    def _ask(self, request: object) -> Pending | PendingOverlap | PendingSteps:
        if isinstance(request, MultiStep) and not self._as_list and self._steps is not None:
            self._steps.reply = None
            return self._steps
        if isinstance(request, Apply):
            return PendingApply(request, self.sequence)
        if isinstance(request, Overlap):
            return PendingOverlap(request, self._forward)
        if not isinstance(request, Forward):
            raise DecoderError(f"a decoder cannot yield {type(request).__name__} here")
        return self._forward(request)

    def _forward(self, request: Forward) -> PendingForward:
        return PendingForward(request, self.sequence, self._member(request.on or self.sequence))

    def _check_conflicts(self) -> None:
        """Raise DecoderError if two concurrent forward passes write to the same cache."""
        writers = [
            id(pending.cache)
            for pending in self.forwards
            if pending.forward.store is not Store.NONE
        ]
        if len(set(writers)) < len(writers):
            raise DecoderError("concurrent forwards of one sequence and model must not store")

    def _fork(self, asked: Fork) -> Sequence[LiveSequence]:
        self.children = [child for child in self.children if child.state is not State.RELEASED]
        parent = self._member(asked.of or self.sequence)
        if asked.count < 1 or asked.count + len(self.children) > MAX_FORKS:
            living = f", with {len(self.children)} that live" if self.children else ""
            most = f"a sequence can have 1 to {MAX_FORKS} forks"
            raise DecoderError(f"{most}, not {asked.count} more{living}")
        pages = self._needed(parent, asked.count)
        if pages > self.reserved:
            self._resources.reserve_for_forks(pages - self.reserved)
            self.reserved = pages
        children = [parent.fork() for _ in range(asked.count)]
        self.children += children
        return children

    def _member(self, sequence: object) -> LiveSequence:
        for own in (self.sequence, *self.children):
            if own is sequence:
                return own
        raise DecoderError("only the own sequence, and forks of it that live, can be used")

    def _needed(self, parent: LiveSequence, count: int) -> int:
        """Return the most pages of a model that this request can hold with ``count`` more forks.

        Full pages are shared. Every other page may become a page of one sequence alone.
        """
        family = [self.sequence, *self.children, *[parent] * count]
        most = 0
        for model in parent.caches:
            held = [one.caches[model] for one in family if model in one.caches and self._shares]
            tables = [(cache.tables[0], cache.length // PAGE) for cache in held]
            full = [table.pages[: max(0, end - table.first)] for table, end in tables]
            alone = len(family) * self._own - sum(map(len, full))
            most = max(most, alone + len(set(chain.from_iterable(full))))
        return most
