"""Measures how the time of a request divides, and which forwards only drafted.

The clocks stand around a decoder, not inside it. The requests that the decoder makes are counted as
they pass, the methods of its logits are timed, and the drafter and the verifier of a
draft-and-verify loop are wrapped. This costs a few microseconds in each step, for plain decoding as
well.

Steps that the backend makes by itself (:mod:`paradecode.core.multi_step`) are not divided: all
their time but the forwards' counts as the decoder's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

from paradecode.core.decoder import (
    TARGET,
    Decoder,
    Forward,
    Reply,
    Steps,
    Store,
    TokenSequence,
    Verdict,
)
from paradecode.core.logits import Logits
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.loop import DraftVerify


@dataclass
class Clock:
    """Measures one request: seconds of the decoder's own code, and forwards that only draft.

    Attributes:
        draft: seconds in the drafter, including its use of logits.
        verify: seconds in the verifier, without its use of logits.
        sample: seconds in the logits' methods (argmax, top-k, sampling) outside of the drafter.
        forwards: number of forwards that only drafted: forwards of other models, and forwards of
            some layers of the target that store no keys and values.
        rows: number of token rows that these forwards computed.
    """

    draft: float = 0.0
    verify: float = 0.0
    sample: float = 0.0
    forwards: int = 0
    rows: int = 0

    def count(self, asked: Any) -> None:
        """Add the drafting forwards in one request of the decoder, or in a list of requests."""
        for one in asked if isinstance(asked, list) else [asked]:
            if isinstance(one, Forward) and is_draft(one):
                self.forwards += 1
                self.rows += len(one.tokens) + len(one.tree)


def is_draft(forward: Forward) -> bool:
    """Decide whether a forward only drafts.

    It does if it runs another model than the target, or some layers only and stores no rows.
    """
    stores = len(forward.tokens) > 0 and forward.store is not Store.NONE
    return forward.model != TARGET or (forward.layers is not None and not stores)


class Clocked:
    """A decoder that behaves like the one that ``build`` returns, and runs the clock meanwhile."""

    def __init__(self, build: Callable[[], Decoder], clock: Clock) -> None:
        self._build, self._clock = build, clock

    def decode(self, seq: TokenSequence) -> Steps:
        decoder, clock = self._build(), self._clock
        if isinstance(decoder, DraftVerify):
            _time_parts(decoder, clock)
        inner = decoder.decode(seq)
        answer: Any = None
        try:
            while True:
                try:
                    asked = inner.send(answer)
                except StopIteration:
                    return
                clock.count(asked)
                answer = _behind_clock((yield asked), clock)
        finally:
            inner.close()


LOGITS = ("select", "with_bias", "tempered")
"""Names of the methods of logits that return logits, which are timed in turn."""


class TimedLogits:
    """Logits whose every method is timed.

    They behave like :class:`paradecode.core.logits.Logits`.
    """

    __slots__ = ("_clock", "_logits")

    def __init__(self, logits: Logits, clock: Clock) -> None:
        self._logits, self._clock = logits, clock

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._logits, name)
        if not callable(found):
            return found

        def timed(*arguments: Any) -> Any:
            started = perf_counter()
            result = found(*arguments)
            self._clock.sample += perf_counter() - started
            return TimedLogits(result, self._clock) if name in LOGITS else result

        return timed


def _behind_clock(answer: Any, clock: Clock) -> Any:
    if isinstance(answer, Reply):
        return replace(answer, logits=TimedLogits(answer.logits, clock))
    if isinstance(answer, list):
        return [_behind_clock(one, clock) for one in answer]
    return answer


def _time_parts(decoder: DraftVerify, clock: Clock) -> None:
    verify, drafter = decoder.verify, decoder.drafter
    propose, observe = drafter.propose, drafter.observe

    def timed_verify(seq: TokenSequence, tree: TokenTree, reply: Reply) -> Verdict:
        started, sampled = perf_counter(), clock.sample
        verdict = verify(seq, tree, reply)
        clock.verify += perf_counter() - started - (clock.sample - sampled)
        return verdict

    def timed_propose(seq: TokenSequence, limit: int) -> Any:
        inner = propose(seq, limit)
        answer: Any = None
        while True:
            started, sampled = perf_counter(), clock.sample
            try:
                asked = inner.send(answer)
            except StopIteration as end:
                return end.value
            finally:
                clock.draft += perf_counter() - started
                clock.sample = sampled
            answer = yield asked

    def timed_observe(seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        started, sampled = perf_counter(), clock.sample
        observe(seq, tree, reply, verdict)
        clock.draft += perf_counter() - started
        clock.sample = sampled

    # The instances are changed, not the classes: the loop looks its functions up on the instances.
    vars(decoder).update(verify=timed_verify)
    vars(drafter).update(propose=timed_propose, observe=timed_observe)
