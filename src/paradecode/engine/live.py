"""A running method: its generator, and the requests it waits for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import PAGE, Span, SpanResult
from paradecode.core.errors import DecoderError
from paradecode.core.layers import is_layer, work
from paradecode.core.request import TARGET, Apply, Attend, Fork, Forward, Overwrite, Reply, Store
from paradecode.core.request import Request as DecoderRequest
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.engine.request import GenerationRequest
from paradecode.engine.resources import Resources
from paradecode.engine.sequence import LiveSequence

MAX_FORKS = 64
"""Children of one fork, and forks in a row without another request."""

MAX_IDLE_CALLS = 4096
"""Requests a decoder may make without committing a token before it counts as stuck."""


class Call:
    """One :class:`Forward` on its way; a long prompt takes several forwards."""

    def __init__(self, forward: Forward, sequence: LiveSequence, live: Live) -> None:
        self.forward, self.sequence, self.live = forward, sequence, live
        self.cache = sequence.cache(forward.model)
        self.done = 0
        self.waited = 0
        self.reply: Reply | None = None
        self._hidden: dict[int, list[NDArray[np.float32]]] = {}

    @property
    def rows(self) -> int:
        return len(self.forward.tokens) - self.done + len(self.forward.tree)

    @property
    def drafts(self) -> bool:
        """Whether this serves a draft only: another model, or some layers that store nothing."""
        f = self.forward
        partial = f.layers is not None and not (len(f.tokens) and f.store is not Store.NONE)
        return f.model != TARGET or partial

    @property
    def divisible(self) -> bool:
        """Whether the rows may be spread over several forwards."""
        f = self.forward
        return (
            len(f.tokens) - self.done > 1
            and f.store is Store.COMMIT
            and f.attend is Attend.CAUSAL
            and f.logits is None
            and f.positions is None
            and f.visible is None
            and f.embeddings is None
            and f.resume is None
        )

    def part(self, rows: int) -> Forward:
        """The forward of the next ``rows`` rows: all that is left, or tokens without the tree."""
        if rows >= self.rows and self.done == 0:
            return self.forward
        left = len(self.forward.tokens) - self.done
        if rows >= self.rows:
            return replace(self.forward, tokens=self.forward.tokens[self.done :])
        count = min(rows, left - 1) if rows >= left else rows
        return replace(
            self.forward,
            tokens=self.forward.tokens[self.done : self.done + count],
            tree=EMPTY,
            under=None,
            logits=np.empty(0, np.int32),
        )

    def plan(self, part: Forward) -> Span:
        return self.cache.plan(part, self.sequence.tokens_for(part.model))

    def receive(self, part: Forward, result: SpanResult) -> None:
        """Book a forward that ran ``part``."""
        self.cache.record(part, self.sequence.tokens_for(part.model))
        self.done += len(part.tokens)
        for layer, states in result.hidden.items():
            self._hidden.setdefault(layer, []).append(states)
        if self.done == len(self.forward.tokens) and len(part.tree) == len(self.forward.tree):
            if not self.drafts:
                self._book()
            layers = self.cache.backend.config.layers
            hidden = {
                layer: np.concatenate(self._hidden[layer % layers]) for layer in self.forward.hidden
            }
            self.reply = Reply(result.logits, hidden)

    def _book(self) -> None:
        f, rows = self.forward, len(self.forward.tokens)
        if f.layers is not None and isinstance(f.store, Overwrite):
            # Some layers of a canvas once more: no forward of its own, but a part of its rows.
            self.sequence.rows += round(rows * work(f.layers) / self.cache.backend.config.layers)
        else:
            self.sequence.scored(f.tree, rows)


class Live:
    """One request that was given to the engine.

    Attributes:
        reserved: pages set aside for it in each model, those of its forks included.
    """

    def __init__(
        self,
        request: GenerationRequest,
        sequence: LiveSequence,
        resources: Resources,
    ) -> None:
        self.request, self.sequence, self._resources = request, sequence, resources
        self._generator = request.decoder().decode(sequence)
        self._waiting: list[Call | Apply] = []
        self._answers: list[Any] = []
        self._as_list = False
        self._idle = 0
        self.children: list[LiveSequence] = []
        self.reserved = self._own = resources.pages_for(request)

    @property
    def calls(self) -> list[Call]:
        return [call for call in self._waiting if isinstance(call, Call) and call.reply is None]

    @property
    def applies(self) -> list[Apply]:
        return [
            call
            for call, answer in zip(self._waiting, self._answers, strict=True)
            if isinstance(call, Apply) and answer is None
        ]

    def start(self) -> None:
        self.sequence.admit()
        self._resume(None)

    def answer(self, apply: Apply, outputs: NDArray[Any]) -> None:
        for index, waiting in enumerate(self._waiting):
            if waiting is apply and self._answers[index] is None:
                self._answers[index] = outputs
                return

    def advance(self) -> bool:
        """Resume the method if everything it waits for has arrived; True if it ran."""
        answers = [
            call.reply if isinstance(call, Call) else answer
            for call, answer in zip(self._waiting, self._answers, strict=True)
        ]
        if self.sequence.finished or any(answer is None for answer in answers):
            return False
        self._resume(answers if self._as_list else answers[0])
        return True

    def close(self) -> None:
        self._waiting, self._answers = [], []
        try:
            self._generator.close()
        except Exception as error:  # It resists its end: it raises, or yields once more.
            self.sequence.late_error = self.sequence.late_error or error
        for child in self.children:
            child.release()

    def _resume(self, answer: Any) -> None:
        started = time.perf_counter()
        committed = len(self.sequence.trace)
        try:
            asked = self._generator.send(answer)
            forks = 0
            while isinstance(asked, Fork):
                forks += 1
                if forks > MAX_FORKS:
                    raise DecoderError(f"the decoder forked {MAX_FORKS} times in a row")
                asked = self._generator.send(self._fork(asked.count))
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
        self._waiting = [self._call(request) for request in requests]
        self._answers = [None] * len(self._waiting)
        self._check_conflicts()
        self.sequence.timer.decoder += time.perf_counter() - started

    def _call(self, request: DecoderRequest) -> Call | Apply:
        if isinstance(request, Apply):
            return replace(request, inputs=_rows(request.inputs))
        if not isinstance(request, Forward):
            raise DecoderError(f"a decoder cannot yield {type(request).__name__} here")
        sequence = request.on or self.sequence
        if sequence is not self.sequence and sequence not in self.children:
            raise DecoderError("a forward may concern its own sequence or a fork of it only")
        assert isinstance(sequence, LiveSequence)
        return Call(_checked(request), sequence, self)

    def _check_conflicts(self) -> None:
        """Two concurrent forwards must not write the same cache."""
        writers = [
            id(call.cache)
            for call in self._waiting
            if isinstance(call, Call) and call.forward.store is not Store.NONE
        ]
        if len(set(writers)) < len(writers):
            raise DecoderError("concurrent forwards of one sequence and model must not store")

    def _fork(self, count: int) -> Sequence[LiveSequence]:
        if not 1 <= count <= MAX_FORKS:
            raise DecoderError(f"a sequence can be forked 1 to {MAX_FORKS} times, not {count}")
        # The pages that are full now stay shared; all others a child may come to hold alone.
        full = min((cache.length // PAGE for cache in self.sequence.caches.values()), default=0)
        pages = count * (self._own - full)
        self._resources.reserve_for_forks(pages)
        self.reserved += pages
        children = [self.sequence.fork() for _ in range(count)]
        self.children += children
        return children


def _checked(forward: Forward) -> Forward:
    """The forward with its parts in the types that the engine relies on."""
    tokens = np.asarray(forward.tokens)
    if tokens.ndim != 1 or (len(tokens) and tokens.dtype.kind not in "iu"):
        raise DecoderError(f"tokens must be a vector of token ids, not {forward.tokens!r}")
    if not isinstance(forward.tree, TokenTree):
        raise DecoderError(f"tree must be a TokenTree, not {type(forward.tree).__name__}")
    layers = None if forward.layers is None else tuple(forward.layers)
    if layers is not None and not all(map(is_layer, layers)):
        raise DecoderError(
            "layers must be numbers of layers, or Half(number, 'attention' or 'mlp'), not "
            f"{layers!r:.80}"
        )
    if tokens is forward.tokens and layers is forward.layers and isinstance(forward.hidden, tuple):
        return forward
    return replace(forward, tokens=tokens, layers=layers, hidden=tuple(forward.hidden))


def _rows(inputs: NDArray[Any]) -> NDArray[Any]:
    inputs = np.asarray(inputs)
    if inputs.ndim == 0:
        raise DecoderError("the inputs of a module need a first axis")
    return inputs
