"""A live request for its decoder: its caches, its forks, and its commits.

:class:`Translation` stores a sequence's tokens in the ids of a model with another vocabulary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from paradecode.backends.interface import PAGE, CommittedStep, gives_attention, windows_of
from paradecode.core.decoder import TARGET, ModelFacts, TokenSequence, Verdict
from paradecode.core.errors import DecoderError
from paradecode.core.head import Head
from paradecode.core.trace import CanvasStep, TokenLogprob, token_logprobs
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.core.vocabulary import Vocabulary
from paradecode.engine.kv import KVCache
from paradecode.engine.output import LiveOutput, State
from paradecode.engine.request import GenerationRequest
from paradecode.engine.resources import Resources

T = TypeVar("T")


_OWN = ("vocabulary", "gives_attention", "window")
_FACTS = [each.name for each in fields(ModelFacts) if each.name not in _OWN]


class Translation:
    """A sequence's tokens so far, translated into the token ids of another vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._read = 0
        self._tokens = np.empty(0, np.int32)

    def follow(self, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return the translation of ``tokens``, int32 [n].

        ``tokens`` must begin with the tokens of the last call.
        """
        if len(tokens) > self._read:
            new = self.vocabulary.translate(tokens[self._read :])
            self._tokens = np.concatenate([self._tokens, new])
            self._tokens.flags.writeable = False
            self._read = len(tokens)
        return self._tokens

    def length(self, tokens: NDArray[np.int32]) -> int:
        """Return the number of tokens of the other model that ``tokens`` become."""
        starts = self.vocabulary.starts
        return int((starts[tokens + 1] - starts[tokens]).sum())


class LiveSequence(LiveOutput):
    """The engine's implementation of :class:`paradecode.core.decoder.TokenSequence`.

    Args:
        request: the request, with its ``seed`` set.
        resources: the engine's models, pages and stores.
        parent: the sequence of which this one is a fork, or None.

    Attributes:
        caches: keys and values in each model that was used so far; empty after :meth:`release`.
        late_error: an exception that the method raised after the output's end; the output stays.
    """

    def __init__(
        self, request: GenerationRequest, resources: Resources, parent: LiveSequence | None = None
    ) -> None:
        super().__init__(request, resources.config, resources.new_text)
        self._request, self._resources = request, resources
        self.constraint, self.owner = request.constraint, request.owner
        self.prediction = request.prediction
        if self.prediction is not None:  # No output is longer than the context.
            self.prediction = np.asarray(self.prediction)[: self.context].astype(np.int32)
        self.caches: dict[str, KVCache] = {}
        # A fork of a fork refers to the request's own sequence: otherwise forks would keep one
        # another in memory.
        self._root: LiveSequence | None = parent and (parent._root or parent)
        self._stores: dict[str, Any] | None = None
        self._translations = {
            name: Translation(vocabulary) for name, vocabulary in resources.vocabularies.items()
        }
        self.late_error: Exception | None = None

    # The interface for decoders.

    @property
    def pending(self) -> NDArray[np.int32]:
        return self.pending_for(TARGET)

    def pending_for(self, model: str = TARGET) -> NDArray[np.int32]:
        return self.tokens_for(model)[self.cache(model).length :]

    def about(self, model: str = TARGET) -> ModelFacts:
        backend, translation = self.cache(model).backend, self._translations.get(model)
        return ModelFacts(
            **{name: getattr(backend.config, name) for name in _FACTS},
            vocabulary=translation.vocabulary if translation else None,
            gives_attention=gives_attention(backend),
            window=windows_of(backend.config)[-1],
        )

    def head(self, path: str, vocabulary: int = 0, dtype: str = "q8", model: str = TARGET) -> Head:
        return self._resources.head(path, vocabulary, dtype, model)

    def embed(self, tokens: NDArray[np.integer]) -> NDArray[np.float32]:
        weights = self._resources.weights
        if "embed" not in weights:
            raise DecoderError("the engine was not given the weights of the target's embedding")
        return weights["embed"].looked_up(tokens)

    def room_for(self, model: str) -> int:
        resources = self._resources
        # One page of the reservation is for copies; draft rows follow the tokens.
        reserved = (resources.whole_pages(self._request) - 1) * PAGE
        reserved -= resources.scratch_for(self._request)
        context = self.cache(model).backend.config.context_length
        return min(context, reserved) - len(self.tokens_for(model))

    @property
    def scratch(self) -> int:
        return self.cache(TARGET).scratch

    @property
    def neighbours(self) -> int:
        return self._resources.load.sequences - 1

    def step_seconds(self, rows: int, model: str = TARGET, keys: int | None = None) -> float | None:
        seen = self._length if keys is None else min(keys, self._length)
        return self._resources.load.seconds(model, rows, self.last_rows, seen)

    def shared(self, name: str, make: Callable[[], T]) -> T:
        stores = self._learned()
        found = stores.get(name)
        if found is None:
            found = stores[name] = make()
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
        self._log(committed.tolist(), accepted)

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
        committed = self.tokens[self._length - kept :].tolist()
        self.sampler.advance(committed)
        if end is not None and not self.finished:
            self._finish(end)
        self._log(committed, 0, step)

    def adopt(self, child: TokenSequence) -> None:
        if not isinstance(child, LiveSequence):
            raise DecoderError("only a fork of this sequence can be adopted")
        self._buffer, self._length = child._buffer.copy(), child._length
        self._view = self._buffer[:0]
        child.text.follow(self.text)
        self.sampler, self.text = child.sampler, child.text
        self.forwards = max(self.forwards, child.forwards)
        if child.finish_reason is not None:
            self.state, self.finish_reason = State.FINISHED, child.finish_reason
        self.logprobs = child.logprobs[self._scores_taken - child._scores_taken :]
        self.trace = child.trace
        self.caches, child.caches = child.caches, self.caches

    # The interface for the engine.

    def cache(self, model: str) -> KVCache:
        if model not in self.caches:
            if self.state is State.RELEASED:
                raise DecoderError("the sequence has ended; it holds no keys and values any more")
            self.caches[model] = self._resources.open_cache(model, self._request)
            # At least one prompt token stays pending: its logits are needed.
            reused = self.caches[model].reuse(self.tokens_for(model)[:-1])
            if model == TARGET:
                self.cached_tokens = min(reused, self.prompt_length)
        return self.caches[model]

    def found(self, model: str = TARGET) -> int:
        return self.cache(model).final

    def tokens_for(self, model: str) -> NDArray[np.int32]:
        """Return the tokens of prompt and output so far as a model's own token ids, int32 [n]."""
        translation = self._translations.get(model)
        return self.tokens if translation is None else translation.follow(self.tokens)

    def _spelled(self, model: str, tokens: NDArray[np.int32]) -> int:
        """Return the number of a model's tokens that the given target tokens become."""
        translation = self._translations.get(model)
        return len(tokens) if translation is None else translation.length(tokens)

    def _learned(self) -> dict[str, Any]:
        """Return the stores that the tenant's requests share.

        A fork uses the stores of the request's own sequence. Stores are opened at the first use, so
        a request that only waits, or is refused, opens none.
        """
        if self._root is not None:
            return self._root._learned()
        if self._stores is None:
            if self.state is State.RELEASED:  # It could not leave new stores.
                return {}
            self._stores = self._resources.stores.of(self._request.salt, self.owner)
        return self._stores

    def fork(self) -> LiveSequence:
        """Return a child with the same tokens, whose caches share this sequence's pages."""
        child = LiveSequence(self._request, self._resources, self)
        child.caches = {name: cache.fork() for name, cache in self.caches.items()}
        tokens = self.tokens[child._length :].tolist()
        child.state = self.state
        child._buffer, child._length = self._buffer.copy(), self._length
        child.sampler.advance(tokens)
        child.text = self.text.fork()
        child.logprobs, child.trace = list(self.logprobs), list(self.trace)
        child.forwards, child.rows = self.forwards, self.rows
        child._scores_taken = self._scores_taken
        return child

    def finish(self, reason: str, error: Exception | None = None) -> None:
        """End the request, and give its pages back; a later call only records its error."""
        if self.finish_reason is None:
            self._finish(reason)
            self.error = error
        elif error is not None:
            self.late_error = error
        self.ended = time.perf_counter()
        self.release()

    def release(self) -> None:
        if self._stores is not None and self.state is not State.RELEASED:
            self._resources.stores.left(self._request.salt, self.owner)
        self.state = State.RELEASED
        for cache in self.caches.values():
            cache.release()
        self.caches.clear()

    @property
    def simple(self) -> bool:
        """True if the backend alone can decide on the tokens and on the end of the output.

        Only a token or the length may end the output. The request may ask for log-probabilities of
        its own output tokens but of no others, and it may have ``min_tokens``.
        """
        decides = self.params.min_tokens == 0 and not self.sampler.bare
        return not (self.params.stop or decides or self.params.logprobs)

    @property
    def regular(self) -> bool:
        """True if the next steps are plain target forwards without penalties, bans or biases.

        Other models may have read some of the text, but have no undecided draft.
        """
        cache = self.caches.get(TARGET)
        return (
            cache is not None
            and cache.regular
            and not any(len(other.tentative) for other in self.caches.values())
            and cache.length == self._length - 1
            and len(self.trace) > 0
            and self.sampler.bare
        )

    def follow(self, steps: Sequence[CommittedStep], begun: float) -> None:
        """Commit the steps that the backend made in a call that began at ``begun``."""
        for step in steps:
            tree = EMPTY
            if step.drafted is not None:
                tree = TokenTree.chain(step.drafted, step.estimates)
            self.scored(tree, 1)
            kept = self._append(step.tokens)
            self.sampler.advance(step.tokens[:kept])
            scored = zip(step.tokens[:kept], step.logprobs)
            self.logprobs += [TokenLogprob(token, logprob, ()) for token, logprob in scored]
            now = time.perf_counter() if step is steps[-1] else begun + step.ended
            self._log(step.tokens[:kept], min(kept, len(step.tokens) - 1), now=now)
        self.caches[TARGET].follow(self.tokens)
        forwards = sum(step.forward for step in steps)
        self.timer.target += forwards
        self.timer.decoder += steps[-1].ended - forwards
