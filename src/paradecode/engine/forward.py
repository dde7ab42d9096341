"""Pending requests of methods: they become spans of a backend, and its results become replies.

A row is one position in a forward pass: its token goes in, and keys, values and logits come out.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from threading import Thread
from typing import Any, TypeVar, Union

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import Backend, Span, SpanResult
from paradecode.core.decoder import TARGET, Apply, Forward, Overlap, Reply, Store
from paradecode.core.errors import BackendLost, DecoderError
from paradecode.core.layers import Layers, work
from paradecode.core.network import Array
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.engine.kv import KVCache, given_rows
from paradecode.engine.lowering import checked, span_of
from paradecode.engine.sequence import LiveSequence

Results = tuple[Sequence["SpanResult | Exception"], float]
"""The result of a packed forward pass for each span, and the seconds that the forward took."""
Run = Callable[[], Results]


class PendingForward:
    """A requested :class:`Forward`. A long prompt takes several forward passes of the backend.

    Args:
        owner: the sequence whose method made the request.
        sequence: the sequence to which the rows belong: ``owner`` or a fork of it.

    Attributes:
        done: number of ``tokens`` rows that were run.
        waited: number of steps in which there was no room for this request.
        joined: True if its rows have already run through the first layers, while drafting.
        reply: the reply, when it is complete.
        error: the exception because of which there will be no reply.
    """

    def __init__(self, forward: Forward, owner: LiveSequence, sequence: LiveSequence) -> None:
        self.forward, self.owner, self.sequence = checked(forward), owner, sequence
        self.cache = sequence.cache(forward.model)
        self.done, self.waited, self.joined = 0, 0, False
        self.reply: Reply | None = None
        self.error: Exception | None = None
        self._hidden: dict[int, list[NDArray[np.float32]]] = {}
        self._tentative = EMPTY

    @property
    def rows(self) -> int:
        return len(self.forward.tokens) - self.done + len(self.forward.tree.tokens)

    @property
    def drafts(self) -> bool:
        """True if this forward only drafts: it runs another model, or layers that store nothing.

        A forward pass that only reads attention weights is the target's own work.
        """
        f = self.forward  # ``layers=()`` runs the LM head alone.
        stores = len(f.tokens) > 0 and f.store is not Store.NONE
        some = bool(f.layers) and f.attention is None and not stores
        return f.model != TARGET or some

    @property
    def divisible(self) -> bool:
        """True if the rows may be split over several forward passes."""
        f = self.forward
        return len(f.tokens) - self.done > 1 and f.sequential and not self.cache.joins(f)

    def part(self, rows: int) -> Forward:
        """Return the forward pass of the next ``rows`` rows: all remaining rows, or only tokens."""
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
            places=None,
            given=None,
            logits=np.empty(0, np.int32),
        )

    def once(self, part: Forward) -> int:
        """Return the number of rows by which ``part`` is larger than the next step's part.

        The next step has one row if the prompt ends with ``part``, and else about as many rows.
        """
        ends = self.done + len(part.tokens) == len(self.forward.tokens)
        return max(0, len(part.tokens) - 1) if ends else 0

    def plan(self, part: Forward) -> Span:
        """Return the span that a backend runs for ``part``; raise the errors of :func:`span_of`."""
        self.joined = self.cache.joins(part)
        span, self._tentative = span_of(part, self.cache, self.sequence.tokens_for(part.model))
        return span

    def receive(self, part: Forward, result: SpanResult) -> None:
        """Record the result of a forward pass that ran ``part``."""
        history = self.sequence.tokens_for(part.model)
        self.cache.record(part, self._tentative, history, result.hidden)
        self.done += len(part.tokens)
        for layer, states in result.hidden.items():
            self._hidden.setdefault(layer, []).append(states)
        if self.rows == len(self.forward.tree.tokens) == len(part.tree.tokens):
            if not self.drafts:
                self._book()
            layers = self.cache.backend.config.layers
            hidden = {
                layer: np.concatenate(self._hidden[layer % layers], dtype=np.float32)
                for layer in self.forward.hidden
            }
            self.reply = Reply(result.logits, hidden, result.attention)

    def _book(self) -> None:
        f, rows = self.forward, len(self.forward.tokens)
        count = len(f.tree) if f.places is not None else given_rows(f)
        # The first layers of joined rows ran as a draft and were not counted, so the row counts
        # whole.
        whole = f.layers is None or self.joined
        share = 1.0 if whole else work(f.layers or ()) / self.cache.backend.config.layers
        if whole or f.store is Store.COMMIT:
            drafted = f.tree.first(len(f.tree) - count) if count else f.tree
            self.sequence.scored(drafted, rows + count, share)
        else:  # It counts as no forward: further layers of rows that were counted, attention
            # weights of some layer, or the LM head alone.
            self.sequence.rows += rows * share
        if self.owner is not self.sequence:  # The rows of forks count for their request.
            self.owner.rows += (rows + len(f.tree)) * share


def by_model_and_layers(asked: Sequence[PendingForward]) -> list[list[PendingForward]]:
    """Group forwards that can run together: same model, same layers, one writer of each cache."""
    groups: dict[tuple[str, Layers | None, int], list[PendingForward]] = {}
    seen: dict[int, tuple[int, bool]] = {}
    for pending in asked:
        forward = pending.forward
        writes = forward.store is not Store.NONE or len(forward.tree.tokens) > 0
        turn, alone = seen.get(id(pending.cache), (-1, True))
        turn += alone or writes
        seen[id(pending.cache)] = turn, writes
        groups.setdefault((forward.model, forward.layers, turn), []).append(pending)
    return list(groups.values())


def rows_by_owner(asked: Sequence[PendingForward]) -> Counter[str]:
    rows = Counter[str]()
    for forward in asked:
        rows[forward.owner.owner] += forward.rows
    return rows


def run_together(
    batch: Sequence[tuple[PendingForward, int]],
    ran: Counter[KVCache],
    around: Callable[[Run], Results] | None = None,
) -> int:
    """Run the given rows of all forward passes in one packed forward, and record the results.

    Args:
        batch: forwards, each with the number of rows to run.
        ran: number of rows that the target ran for each cache in this step. The batch's rows are
            added; a prompt that ends here counts as one row, because its next step has one.
        around: a function that calls the forward while something else runs at the same time.

    Returns:
        1, or 0 if no forward could be run.

    Raises:
        BackendLost: if no request can continue, and the owner of the engine must know.
    """
    planned: list[tuple[PendingForward, Forward, Span]] = []
    for pending, rows in batch:
        try:
            part = pending.part(rows)
            planned.append((pending, part, pending.plan(part)))
        except Exception as error:
            pending.error = error
    if not planned:
        return 0
    first = planned[0][0]
    backend, drafts = first.cache.backend, first.drafts
    run = partial(_timed, backend, [span for _, _, span in planned])
    results, seconds = run() if around is None else around(run)
    if not drafts:
        for pending, part, span in planned:
            # The LM head alone counts as no forward, unless it completes joined rows.
            if pending.forward.layers != () or pending.joined:
                ran[pending.cache] += len(span.positions) - pending.once(part)
    for (pending, part, _), result in zip(planned, results, strict=True):
        if isinstance(result, Exception):
            pending.error = result
            continue
        timer = pending.owner.timer
        if pending.drafts:
            timer.other += seconds
        else:
            timer.target += seconds
        try:
            pending.receive(part, result)
        except Exception as error:
            pending.error = error
    return 1


def _timed(backend: Backend, spans: Sequence[Span]) -> Results:
    """Run the forward pass; return the result of each span, and the seconds."""
    started = time.perf_counter()
    try:
        results: Sequence[SpanResult | Exception] = backend.forward(spans)
    except BackendLost:
        raise
    except Exception:
        # One bad span must not cost the other spans their step: run each alone.
        results = [_alone(backend, span) for span in spans]
    return results, time.perf_counter() - started


def _alone(backend: Backend, span: Span) -> SpanResult | Exception:
    try:
        return backend.forward([span])[0]
    except Exception as error:
        return error


class PendingApply:
    """A requested :class:`Apply`.

    Attributes:
        owner: the sequence whose method made the request; the time counts as time of its other
            models.
        reply: the network's result; None before it was run.
        error: the exception because of which there will be no reply.
    """

    def __init__(self, asked: Apply, owner: LiveSequence) -> None:
        network: Any = asked.network
        network.check(asked.inputs)
        self.network, self.inputs, self.owner = asked.network, asked.inputs, owner
        self.reply: Array | TokenTree | None = None
        self.error: Exception | None = None


Pending = Union[PendingForward, PendingApply]


# A forward of the target, and a generator that runs another model at the same time.

Result = TypeVar("Result")
MAX_CALLS = 4096
"""Number of requests of one ``meanwhile`` after which it counts as stuck."""


class PendingOverlap:
    """A requested :class:`Overlap`: a forward of the target, and a generator that runs meanwhile.

    Attributes:
        forward: the target's forward.
        side: the forward for which ``meanwhile`` waits; None when ``meanwhile`` has ended.
    """

    def __init__(self, asked: Overlap, ask: Callable[[Forward], PendingForward]) -> None:
        if not isinstance(asked.forward, Forward) or asked.forward.model != TARGET:
            raise DecoderError("an overlap needs a forward of the target")
        self.forward = ask(asked.forward)
        self._generator, self._ask = asked.meanwhile, ask
        self._result: Any = None
        self._error: Exception | None = None
        self._calls = 0
        self.side: PendingForward | None = None
        self._send(None)

    @property
    def error(self) -> Exception | None:
        return self.forward.error or self._error

    @property
    def reply(self) -> tuple[Any, Any] | None:
        """The forward's reply and the result of ``meanwhile``; None until both have arrived."""
        if self.side is not None or self.forward.reply is None:
            return None
        return self.forward.reply, self._result

    @property
    def ready(self) -> bool:
        """True if ``meanwhile`` can continue."""
        side = self.side
        return side is not None and (side.reply is not None or side.error is not None)

    def go_on(self) -> None:
        """Resume ``meanwhile`` with the reply of its forward pass."""
        assert self.side is not None
        if self.side.error is not None:
            self._fail(self.side.error)
            return
        started = time.perf_counter()
        self._send(self.side.reply)
        self.forward.owner.timer.decoder += time.perf_counter() - started

    def close(self) -> Exception | None:
        """End ``meanwhile``; return an exception that it raises when it is closed, or None."""
        self.side = None
        try:
            self._generator.close()
        except Exception as error:  # It raises, or yields once more.
            return error
        return None

    def _send(self, reply: Any) -> None:
        self._calls += 1
        try:
            asked = self._generator.send(reply)
            if not isinstance(asked, Forward) or asked.model == TARGET:
                raise DecoderError("meanwhile only forwards of other models can run")
            if self._calls > MAX_CALLS:
                raise DecoderError(f"meanwhile made {MAX_CALLS} requests beside one forward")
            self.side = self._ask(asked)
        except StopIteration as end:
            self._result, self.side = end.value, None
        except Exception as error:  # The method's own error ends only this request.
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._error = error
        self.close()


def go_on(overlaps: Sequence[PendingOverlap]) -> None:
    for overlap in overlaps:
        overlap.go_on()


def run_sides(
    overlaps: Sequence[PendingOverlap], run: Callable[[list[PendingForward]], None],
    going: Callable[[], bool],
) -> None:  # fmt: skip
    """Run the ``meanwhile`` generators while ``going()`` returns True.

    ``going()`` returns whether the target's forward pass still runs. The next step continues
    generators that have not ended.
    """
    while going():
        asked = [overlap.side for overlap in overlaps if overlap.side is not None]
        for group in by_model_and_layers(asked):
            run(group)
        if not all(overlap.ready for overlap in overlaps if overlap.side is not None) or not asked:
            return
        go_on([overlap for overlap in overlaps if overlap.ready])


def beside(call: Callable[[], Result], meanwhile: Callable[[Callable[[], bool]], None]) -> Result:
    """Run ``call`` in another thread and ``meanwhile`` in this one; return the result of ``call``.

    The argument of ``meanwhile`` is a function that returns whether the thread still runs.
    """
    found: Future[Result] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:
            found.set_exception(error)

    thread = Thread(target=run, name="beside")
    thread.start()
    try:
        meanwhile(lambda: not found.done())
    finally:
        thread.join()
    return found.result()
