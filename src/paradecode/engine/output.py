"""The output of a request: its tokens and text, its end, and the results for callers.

:class:`Origins` records which forward pass decided each token, and the canvas after the output.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import chain, groupby

import numpy as np
from numpy.typing import NDArray

from paradecode.core.sampling import Sampler
from paradecode.core.trace import CanvasStep, Commit, Stats, Step, TokenLogprob
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.engine.request import GenerationRequest
from paradecode.models.config import ModelConfig
from paradecode.models.text_stream import NewTextStream, OutputText


class Origins:
    """Records which forward pass decided each token of one output, by following its trace.

    Args:
        there: number of tokens with which a resumed output begins.

    Attributes:
        forwards: for each output token, the number of the target forward that decided it, from 1; 0
            for tokens that existed before the first forward.
    """

    def __init__(self, there: int) -> None:
        self.forwards = array("L", [0]) * there
        self._canvas: dict[int, tuple[int, int]] = {}
        self._length = self._steps = 0

    def follow(self, trace: Sequence[Step], tokens: int, forward: int) -> None:
        """Read the new steps of the trace.

        Args:
            tokens: number of tokens of the output. A failed commit may have added tokens without a
                step.
            forward: number of the forward that decided tokens without a step.
        """
        for step in trace[self._steps :]:
            self._add(step)
        self._steps = len(trace)
        self.forwards.extend([forward] * (tokens - len(self.forwards)))

    def _add(self, step: Step) -> None:
        before = step.forward
        if step.canvas is not None:
            for offset in step.canvas.revoked:
                self._canvas.pop(offset, None)
            decided = zip(step.canvas.offsets, step.canvas.tokens, strict=True)
            self._canvas.update((offset, (token, step.forward)) for offset, token in decided)
            before, self._length = 0, step.canvas.length
        for place in range(len(self.forwards), len(self.forwards) + len(step.tokens)):
            self.forwards.append(self._canvas.pop(place, (0, before))[1])

    @property
    def provisional(self) -> tuple[int | None, ...]:
        """The canvas after the output: the decided token of each position; None where masked."""
        places = range(len(self.forwards), self._length)
        return tuple(self._canvas.get(place, (None,))[0] for place in places)


class State(Enum):
    """The stage of a request. Stages come in this order, and some may be skipped."""

    WAITING = "waiting"
    """The request waits for admission."""
    RUNNING = "running"
    """The request's method takes part in the steps."""
    FINISHED = "finished"
    """The output has ended, and ``finish_reason`` says why. The request still holds its pages."""
    RELEASED = "released"
    """The request has given its pages back and can get no new pages."""


@dataclass
class Timer:
    """Wall seconds of a request in target forwards, other models, and the decoder's Python."""

    target: float = 0.0
    other: float = 0.0
    decoder: float = 0.0


@dataclass
class Draft:
    """The draft rows that the target scored since the last commit."""

    tree: TokenTree = EMPTY
    drafted: int = 0


class LiveOutput:
    """The output of one request while it is decoded.

    Args:
        request: the request, with its ``seed`` set.
        config: configuration of the target.
        new_text: makes a detokeniser; without it the output has no text.

    Attributes:
        state: the stage of the request.
        finish_reason: why the output has ended; None while it continues.
        error: the exception that ended the request, if ``finish_reason`` is ``error``.
        logprobs: log-probabilities of tokens that callers have not taken, if they want any.
        trace: one entry for each commit.
        forwards, rows: number of the target's forwards for this request, and of their rows.
        last_rows: number of rows of its last target forward; 1 after a prompt.
        commits: the pieces of :meth:`take` that a caller stores here.
        cached_tokens: number of prompt tokens whose keys and values were in the prefix cache.
        arrived, admitted, ended: times of ``time.perf_counter``, in seconds.
    """

    def __init__(
        self, request: GenerationRequest, config: ModelConfig, new_text: NewTextStream | None
    ) -> None:
        params, prompt = request.params, np.asarray(request.prompt).astype(np.int32)
        eos = () if params.ignore_eos else config.eos_tokens
        self.stops = frozenset({*eos, *params.stop_token_ids})
        """Tokens that end the output."""
        stops = tuple(self.stops)
        matcher = None if request.constraint is None else request.constraint.follow(stops)
        self.params, self.prompt_length, self.context = params, len(prompt), config.context_length
        self.sampler = Sampler(params, prompt, stops, matcher)
        self.text = OutputText(None if new_text is None else new_text(), params.stop)
        self._buffer = np.empty(len(prompt) + 64, np.int32)
        self._buffer[: len(prompt)] = prompt
        self._length = len(prompt)
        self._view = self._buffer[:0]
        self.state = State.WAITING
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.logprobs: list[TokenLogprob] = []
        self.trace: list[Step] = []
        self.timer, self.draft = Timer(), Draft()
        self.forwards, self.rows, self.last_rows = 0, 0.0, 1
        self.cached_tokens = 0
        self.arrived = self.admitted = time.perf_counter()
        self._last_commit = self.ended = self.arrived
        self._scores_taken = 0
        self.commits: list[Commit] = []
        for token in request.resume:
            if not self.finished:
                self._append([token])
                self.sampler.advance([token])
        self._taken = self._length - self.prompt_length  # Callers have the resumed tokens.
        self._origins = Origins(self._taken)
        self.text.take(self.finished)

    @property
    def tokens(self) -> NDArray[np.int32]:
        if len(self._view) != self._length:
            self._view = self._buffer[: self._length]
            self._view.flags.writeable = False
        return self._view

    @property
    def room(self) -> int:
        generated = self._length - self.prompt_length
        return min(self.params.max_tokens - generated, self.context - self._length)

    @property
    def finished(self) -> bool:
        return self.state in _OVER

    def admit(self) -> None:
        """Record that the method begins. If resumed tokens ended the output, it stays finished."""
        self.admitted = self._last_commit = time.perf_counter()
        if self.state is State.WAITING:
            self.state = State.RUNNING

    def scored(self, tree: TokenTree, tokens: int, share: float = 1.0) -> None:
        """Count a target forward pass over ``tokens`` rows, and the draft that it scored.

        Args:
            share: the share of the layers that ran, from 0 to 1.
        """
        self.forwards += 1
        drafted = len(tree.tokens)
        self.rows += (tokens + drafted) * share
        self.last_rows = min(tokens, 1) + drafted  # The prompt's rows do not run again.
        self.draft = Draft(tree, self.draft.drafted + drafted)

    # Results for callers.

    def take(self) -> list[Commit]:
        """Return the pieces of text and tokens that became certain since the last call, in order.

        Together they are the new tokens and the new text. A forward pass has several pieces if
        another forward decided the tokens between them, or if some of its text was held back.
        """
        forwards, known = self._followed().forwards, self._taken
        tokens = self.tokens[self.prompt_length + known :].tolist()
        self._taken += len(tokens)
        last, pieces = self._taken - 1, list[tuple[int, list[int], str]]()
        pieces += [(min(place, last), [], text) for place, text in self.text.take(self.finished)]
        pieces += [(place, [token], "") for place, token in enumerate(tokens, known)]
        pieces.sort(key=lambda piece: piece[0])
        commits: list[Commit] = []
        for forward, group in groupby(pieces, lambda piece: forwards[piece[0]]):
            _, new, texts = zip(*group, strict=True)
            commits.append(Commit(forward, tuple(chain.from_iterable(new)), "".join(texts)))
        return commits

    def _followed(self) -> Origins:
        self._origins.follow(self.trace, self._length - self.prompt_length, self.forwards)
        return self._origins

    def take_logprobs(self) -> list[TokenLogprob]:
        """Return the log-probabilities since the last call; each is returned once."""
        taken, self.logprobs = self.logprobs, []
        self._scores_taken += len(taken)
        return taken

    @property
    def provisional(self) -> tuple[int | None, ...]:
        """The decided tokens on the canvas after the output; None for masked positions."""
        return self._followed().provisional

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :].tolist()

    @property
    def stats(self) -> Stats:
        prefill = self.trace[0].seconds if self.trace else 0.0
        waited_until = self.admitted if self.admitted > self.arrived else self.ended
        return Stats.of(
            self.trace,
            forwards=self.forwards,
            rows=round(self.rows),
            generated=self._length - self.prompt_length,
            prompt_tokens=self.prompt_length,
            cached_tokens=self.cached_tokens,
            queue_seconds=waited_until - self.arrived,
            decode_seconds=max(0.0, self._last_commit - self.admitted - prefill),
            target_seconds=self.timer.target,
            other_model_seconds=self.timer.other,
            decoder_seconds=self.timer.decoder,
        )

    # Internals of a commit.

    def _finish(self, reason: str) -> None:
        self.state, self.finish_reason = State.FINISHED, reason
        self.text.finish()

    def _append(self, tokens: Sequence[int]) -> int:
        """Append tokens up to the first that ends the output; return their number."""
        matcher = self.sampler.matcher
        for count, token in enumerate(tokens, 1):
            if self._length == len(self._buffer):
                self._buffer = np.resize(self._buffer, 2 * len(self._buffer))
            self._buffer[self._length] = token
            self._length += 1
            stopped = token in self.stops or self.text.push(token)
            if stopped or (matcher is not None and matcher.complete(tokens[:count])):
                self._finish("stop")
            elif self.room <= 0:
                self._finish("length")
            if self.finished:
                return count
        return len(tokens)

    def _log(
        self,
        committed: list[int],
        accepted: int,
        canvas: CanvasStep | None = None,
        now: float | None = None,
    ) -> None:
        now = time.perf_counter() if now is None else now
        self.trace.append(
            Step(
                forward=self.forwards,
                tokens=tuple(committed),
                accepted=accepted,
                drafted=self.draft.drafted,
                tree=self.draft.tree,
                seconds=now - self._last_commit,
                canvas=canvas,
            )
        )
        self._last_commit = now
        self.draft = Draft()


_OVER = (State.FINISHED, State.RELEASED)
