"""A live request: its tokens, its caches, when it ends, and what it reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from paradecode.core.constraint import Constraint
from paradecode.core.errors import DecoderError
from paradecode.core.logprobs import token_logprobs
from paradecode.core.sampling import Sampler, SamplingParams
from paradecode.core.sequence import TARGET, ModelFacts, Verdict
from paradecode.core.sequence import Sequence as SequenceProtocol
from paradecode.core.trace import CanvasStep, Stats, Step, TokenLogprob
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.core.vocabulary import Vocabulary
from paradecode.engine.cache import Cache
from paradecode.engine.load import Load
from paradecode.engine.text import Text
from paradecode.engine.translation import Translation

T = TypeVar("T")


@dataclass
class Timer:
    """Wall seconds by who spent them."""

    target: float = 0.0
    other: float = 0.0
    decoder: float = 0.0


@dataclass
class Draft:
    """What the target scored since the last commit."""

    tree: TokenTree = EMPTY
    drafted: int = 0


class LiveSequence:
    """The engine's side of :class:`paradecode.core.sequence.Sequence`.

    Args:
        prompt: int32 [p], at least one token.
        params: of this output (``n`` is 1 and ``seed`` is set).
        stop_ids: token ids that end the output.
        context: the model's context length.
        text: where output tokens become text.
        open_cache: makes the cache of a model by name; raises DecoderError for unknown names.
        load: what the engine's steps hold at present, for methods that weigh their cost.
        stores: what the requests of this one's tenant share.
        vocabularies: of the models whose tokens are not the target's.
        reserved: slots set aside in each model's K/V memory; None sets no bound.
        constraint: what the output must be.

    Attributes:
        error: what ended the request, when ``finish_reason`` is ``error``.
        late_error: what the method raised after the output's end. The output stands.
    """

    def __init__(
        self,
        prompt: NDArray[np.int32],
        params: SamplingParams,
        stop_ids: Sequence[int],
        context: int,
        text: Text,
        open_cache: Callable[[str], Cache],
        load: Load | None = None,
        stores: dict[str, Any] | None = None,
        vocabularies: Mapping[str, Vocabulary] | None = None,
        reserved: int | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        self.params, self.prompt_length, self.context = params, len(prompt), context
        self.prediction: NDArray[np.int32] | None = None
        self.constraint = constraint
        matcher = None if constraint is None else constraint.follow(stop_ids)
        self.sampler = Sampler(params, prompt, stop_ids, matcher)
        self.text = text
        self.caches: dict[str, Cache] = {}
        self._open_cache, self._load, self._last_rows = open_cache, load, 1
        self._stores = {} if stores is None else stores
        self._translations = {
            name: Translation(vocabulary) for name, vocabulary in (vocabularies or {}).items()
        }
        self._reserved = reserved
        self._stops = frozenset(stop_ids)
        self._buffer = np.empty(len(prompt) + 64, np.int32)
        self._buffer[: len(prompt)] = prompt
        self._length = len(prompt)
        self._view = self._buffer[:0]
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.late_error: Exception | None = None
        self.logprobs: list[TokenLogprob] = []
        self.trace: list[Step] = []
        self.timer, self.draft = Timer(), Draft()
        self.forwards = self.rows = 0
        self.cached_tokens = 0
        self._released = False
        self.arrived = self.admitted = time.perf_counter()
        self._last_commit = self.ended = self.arrived
        self._taken = 0

    # What decoders see.

    @property
    def tokens(self) -> NDArray[np.int32]:
        if len(self._view) != self._length:
            self._view = self._buffer[: self._length]
            self._view.flags.writeable = False
        return self._view

    @property
    def pending(self) -> NDArray[np.int32]:
        return self.pending_for(TARGET)

    def pending_for(self, model: str = TARGET) -> NDArray[np.int32]:
        return self.tokens_for(model)[self.cache(model).length :]

    def about(self, model: str = TARGET) -> ModelFacts:
        config = self.cache(model).backend.config
        translation = self._translations.get(model)
        return ModelFacts(
            config.layers,
            config.hidden_size,
            config.vocab_size,
            translation.vocabulary if translation else None,
            config.attention,
            config.block_length,
            config.mask_token,
            config.shift,
            config.eos_tokens,
            config.context_length,
        )

    def room_for(self, model: str) -> int:
        context = self.cache(model).backend.config.context_length
        if self._reserved is not None:
            context = min(context, self._reserved)
        return context - len(self.tokens_for(model))

    @property
    def room(self) -> int:
        generated = self._length - self.prompt_length
        return min(self.params.max_tokens - generated, self.context - self._length)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def neighbours(self) -> int:
        return self._load.sequences - 1 if self._load else 0

    def step_seconds(self, rows: int, model: str = TARGET) -> float | None:
        if self._load is None:
            return None
        return self._load.seconds(model, rows, self._last_rows, self._length)

    def shared(self, name: str, make: Callable[[], T]) -> T:
        found = self._stores.get(name)
        if found is None:
            found = self._stores[name] = make()
        return cast(T, found)

    def commit(self, verdict: Verdict) -> None:
        if self.finished:
            raise DecoderError("tokens were committed to a sequence that has finished")
        if not verdict.tokens or len(verdict.tokens) != len(verdict.rows):
            raise DecoderError("a commit needs at least one token, and one logits row for each")
        vocabulary = self.cache(TARGET).backend.config.vocab_size
        if min(verdict.tokens) < 0 or max(verdict.tokens) >= vocabulary:
            raise DecoderError(f"token ids must be from 0 to {vocabulary - 1}")
        kept = self._append(verdict.tokens)
        if self.params.logprobs is not None:
            self.logprobs += token_logprobs(
                verdict.logits, verdict.rows[:kept], verdict.tokens[:kept], self.params.logprobs
            )
        committed = self.tokens[self._length - kept :]
        self.sampler.advance(committed.tolist())
        accepted = 0
        for name, cache in self.caches.items():
            history = self.tokens_for(name)
            count = len(committed) if name == TARGET else self._spelled(name, committed)
            rows = cache.settle(history[len(history) - count :], history)
            if name == TARGET:
                accepted = rows
        self._log(committed, accepted)

    def fill(
        self,
        tokens: list[int],
        step: CanvasStep,
        logprobs: list[TokenLogprob],
        end: str | None = None,
    ) -> None:
        if self.finished:
            raise DecoderError("a canvas was filled after its sequence had finished")
        kept = self._append(tokens)
        self.logprobs += logprobs[:kept]
        committed = self.tokens[self._length - kept :]
        self.sampler.advance(committed.tolist())
        if end is not None and self.finish_reason is None:
            self.finish_reason = end
            self.text.finish()
        self._log(committed, 0, step)

    def adopt(self, child: SequenceProtocol) -> None:
        if not isinstance(child, LiveSequence):
            raise DecoderError("only a fork of this sequence can be adopted")
        self._buffer, self._length = child._buffer.copy(), child._length
        self._view = self._buffer[:0]
        child.text.follow(self.text)
        self.sampler, self.text = child.sampler, child.text
        self.forwards = max(self.forwards, child.forwards)
        self.rows = max(self.rows, child.rows)
        self.finish_reason = child.finish_reason
        self.logprobs, self.trace = child.logprobs, child.trace
        self.caches, child.caches = child.caches, self.caches

    # What the engine does.

    def cache(self, model: str) -> Cache:
        if model not in self.caches:
            if self._released:
                raise DecoderError("the sequence has ended; it holds no keys and values any more")
            self.caches[model] = self._open_cache(model)
            # At least one prompt token stays pending: its logits are needed.
            reused = self.caches[model].reuse(self.tokens_for(model)[:-1])
            if model == TARGET:
                self.cached_tokens = reused
        return self.caches[model]

    def tokens_for(self, model: str) -> NDArray[np.int32]:
        """int32: prompt and output so far in a model's own token ids."""
        translation = self._translations.get(model)
        return self.tokens if translation is None else translation.follow(self.tokens)

    def _spelled(self, model: str, tokens: NDArray[np.int32]) -> int:
        """How many tokens of a model spell ``tokens``."""
        translation = self._translations.get(model)
        return len(tokens) if translation is None else translation.length(tokens)

    def fork(self, text: Text) -> LiveSequence:
        """A child with the same tokens, whose caches share this one's pages."""
        child = LiveSequence(
            self.tokens[: self.prompt_length], self.params, tuple(self._stops), self.context,
            text, self._open_cache, self._load, self._stores,
            {name: entry.vocabulary for name, entry in self._translations.items()}, self._reserved,
            self.constraint,
        )  # fmt: skip
        child.prediction = self.prediction
        child.caches = {name: cache.fork() for name, cache in self.caches.items()}
        for token in self.tokens[self.prompt_length :].tolist():
            child._append([token])
            child.sampler.advance([token])
        child.logprobs, child.trace = list(self.logprobs), list(self.trace)
        child.forwards, child.rows = self.forwards, self.rows
        return child

    def finish(self, reason: str, error: Exception | None = None) -> None:
        """End the request (once); pages go back at once."""
        if self.finish_reason is None:
            self.finish_reason, self.error = reason, error
            self.text.finish()
        elif error is not None:
            self.late_error = error
        self.ended = time.perf_counter()
        self.release()

    def release(self) -> None:
        self._released = True
        for cache in self.caches.values():
            cache.release()
        self.caches.clear()

    def scored(self, tree: TokenTree, tokens: int) -> None:
        """Count a target forward over ``tokens`` rows, and the draft it scored."""
        self.forwards += 1
        self.rows += tokens + len(tree)
        self._last_rows = tokens + len(tree)
        self.draft = Draft(tree, self.draft.drafted + len(tree))

    def take_text(self) -> str:
        """Text that became certain since the last call."""
        return self.text.take(self.finished)

    def take_tokens(self) -> list[int]:
        """Output tokens committed since the last call."""
        taken = self.tokens[self.prompt_length + self._taken :].tolist()
        self._taken += len(taken)
        return taken

    @property
    def provisional(self) -> tuple[int | None, ...]:
        """What is decided on the canvas behind the output: a token, or None where masked."""
        if not self.trace or self.trace[-1].canvas is None:
            return ()
        known: dict[int, int] = {}
        length = 0
        for step in self.trace:
            if step.canvas is not None:
                for offset in step.canvas.revoked:
                    known.pop(offset, None)
                known.update(zip(step.canvas.offsets, step.canvas.tokens, strict=True))
                length = step.canvas.length
        return tuple(known.get(at) for at in range(self._length - self.prompt_length, length))

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
            rows=self.rows,
            generated=self._length - self.prompt_length,
            prompt_tokens=self.prompt_length,
            cached_tokens=self.cached_tokens,
            queue_seconds=waited_until - self.arrived,
            decode_seconds=max(0.0, self._last_commit - self.admitted - prefill),
            target_seconds=self.timer.target,
            other_model_seconds=self.timer.other,
            decoder_seconds=self.timer.decoder,
        )

    def admit(self) -> None:
        self.admitted = self._last_commit = time.perf_counter()

    # Details of a commit.

    def _append(self, tokens: Sequence[int]) -> int:
        """Append tokens up to the first that ends the output; returns how many."""
        matcher = self.sampler.matcher
        for count, token in enumerate(tokens, 1):
            if self._length == len(self._buffer):
                self._buffer = np.resize(self._buffer, 2 * len(self._buffer))
            self._buffer[self._length] = token
            self._length += 1
            stopped = token in self._stops or self.text.push(token)
            if stopped or (matcher is not None and matcher.complete(tokens[:count])):
                self.finish_reason = "stop"
            elif self.room <= 0:
                self.finish_reason = "length"
            if self.finish_reason is not None:
                self.text.finish()
                return count
        return len(tokens)

    def _log(
        self, committed: NDArray[np.int32], accepted: int, canvas: CanvasStep | None = None
    ) -> None:
        now = time.perf_counter()
        self.trace.append(
            Step(
                forward=self.forwards,
                tokens=tuple(committed.tolist()),
                accepted=accepted,
                drafted=self.draft.drafted,
                tree=self.draft.tree,
                seconds=now - self._last_commit,
                canvas=canvas,
            )
        )
        self._last_commit = now
        self.draft = Draft()
