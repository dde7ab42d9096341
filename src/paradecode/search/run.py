"""Runs a strategy on an engine, besides the engine's other requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from paradecode.core.checks import number
from paradecode.core.decoder import Decoder, Steps, TokenSequence
from paradecode.core.errors import CapacityError, DecoderError, InvalidInput
from paradecode.core.multi_step import MultiStep, StepsMade
from paradecode.core.noise import Purpose, key
from paradecode.engine.engine import Engine
from paradecode.engine.prompt import LastStateReader, OneUse, reading_request
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.models.text_stream import OutputText
from paradecode.search.branch import (
    Branch,
    Grow,
    Rate,
    Search,
    Searched,
    SearchTask,
    Start,
    Strategy,
)
from paradecode.search.scorers.scorer import BranchScorer, Rated, ReadsStates, find_scorer


class StepText(OutputText):
    """An output's text that also ends at a mark, which is a text such as an empty line.

    Only a mark that is completed after the branch began ends it. Unlike a stop text, a mark stays
    in the text, because the next step continues after it.

    Attributes:
        marked: True if a mark ended the text.
    """

    def __init__(self, before: OutputText, marks: Sequence[str]) -> None:
        vars(self).update(vars(before))
        self._ends = before._ends[:]
        self._marks, self._longest_mark = marks, max(map(len, marks))
        self._start = self._sent = len(before.value)  # Earlier branches have shown their text.
        self.marked = False

    def push(self, token: int) -> bool:
        searched = max(self._start, len(self.value) - self._longest_mark + 1)
        stopped = super().push(token)
        self.marked = not stopped and any(self.value.find(m, searched) >= 0 for m in self._marks)
        return stopped or self.marked


@dataclass(frozen=True)
class StepDecoder(OneUse):
    """A method that decodes until the end of a step.

    Attributes:
        decoder: returns the method that decodes.
        marks: texts that end a step.
    """

    decoder: Callable[[], Decoder]
    marks: tuple[str, ...]

    def decode(self, seq: TokenSequence) -> Steps:
        assert isinstance(seq, LiveSequence)
        seq.text = StepText(seq.text, self.marks)
        reply: Any = None
        with closing(self.decoder().decode(seq)) as method:
            while True:
                try:
                    asked = method.send(reply)
                except StopIteration:
                    return
                # A backend that makes several steps by itself would not notice a mark.
                reply = StepsMade() if isinstance(asked, MultiStep) else (yield asked)


MOST_BRANCHES = 64
"""The most outputs that a search grows at the same time. More outputs take more memory."""
MOST_STARTED = 4096
"""The most branches of one search."""
MOST_TOKENS = 1 << 31
"""The most tokens of all branches together, if the caller sets no limit."""


@dataclass
class _Begun:
    """A branch that a strategy wants.

    ``sequence`` is None while the branch waits until its prefix has been read.
    """

    start: Start
    request: GenerationRequest
    sequence: LiveSequence | None = None


class SearchRun:
    """One search. The owner of the engine calls :meth:`advance` after each step of the engine.

    Branches with the same prefix wait until the first of them has read it, and then share its K/V
    pages.

    Args:
        engine: the engine that runs the branches.
        request: the request without the search. Its seed must be set.
        strategy: the strategy, an object that no other search uses.
        text_of: returns the text of output tokens.
        prompt: the prompt's text, for the scorer.
        scorer: see :func:`find_scorer`; None scores by likelihood.
        branches: the most outputs that one :class:`Grow` may ask for.
        tokens: the most tokens of all branches. Branches that begin together share the remaining
            tokens equally.

    Attributes:
        found: the result, or None while there is none.
        error: the error that ended the search, or None.
        sequences: the sequences of all branches that have begun, in order.
        starts: the :class:`Start` of each of ``sequences``.
        scores: the latest score of each branch that was scored.
        readings: sequences that read branches again for the scorer.
        started, ended: clock times in seconds.
    """

    def __init__(
        self,
        engine: Engine,
        request: GenerationRequest,
        strategy: Strategy,
        text_of: Callable[[Sequence[int]], str],
        prompt: str = "",
        scorer: BranchScorer | None = None,
        branches: int = MOST_BRANCHES,
        tokens: int = MOST_TOKENS,
    ) -> None:
        if request.params.seed is None:
            raise InvalidInput("seed", None, "a search needs a seed: it numbers its branches")
        self.engine, self.request = engine, request
        self._most, self._budget = min(branches, MOST_BRANCHES), tokens
        self._prompt, self._scorer = prompt, find_scorer(scorer)
        self.found: Searched | None = None
        self.error: Exception | None = None
        self.sequences: list[LiveSequence] = []
        self.starts: list[Start] = []
        self.scores: dict[LiveSequence, float] = {}
        self.readings: list[LiveSequence] = []
        self.started = self.ended = time.perf_counter()
        self._growing: list[_Begun] = []
        judged = self._scorer.reads != "logprobs"
        task = SearchTask(request.params, text_of, tokens, judged)
        self._driver = self._drive(strategy.search(task))
        self.advance()

    @property
    def finished(self) -> bool:
        return self.found is not None or self.error is not None

    @property
    def made(self) -> list[int]:
        """The number of tokens of each of ``sequences``, without tokens of branches before it."""
        return [_made(*begun) for begun in zip(self.starts, self.sequences, strict=True)]

    def advance(self) -> None:
        """Check the branches, and resume the strategy if its request is finished."""
        next(self._driver, None)

    def close(self, error: Exception | None = None) -> None:
        """End the search with an error if it has not ended. Its branches free their pages."""
        self._driver.close()
        if not self.finished:
            self.error = error or DecoderError("the search was cancelled")

    def _drive(self, steps: Search) -> Generator[None, None, None]:
        """Run the requests of the strategy until it ends.

        Each yield waits for a step of the engine.
        """
        reply: Any = None
        try:
            while True:
                asked = steps.send(reply)
                doing = self._rate(asked) if isinstance(asked, Rate) else self._grow(asked)
                reply = yield from doing
        except StopIteration as end:
            self.found = end.value
        except Exception as error:  # Any error ends this search only.
            self.error = error
        finally:
            self._cancel()
            steps.close()
            self.ended = time.perf_counter()

    def _rate(self, asked: Rate) -> Generator[None, None, list[float]]:
        """Return the score of each branch, a finite number.

        For a scorer of hidden states, the engine first reads the branches. Most of their tokens are
        in the prefix cache.

        Raises:
            InvalidInput: if the scorer returned anything but finite numbers.
            Exception: any error of the scorer, or the error that ended the reading.
        """
        engine, request, scorer = self.engine, self.request, self._scorer
        readers, reading = list[LastStateReader](), list[LiveSequence]()
        for branch in asked.branches if scorer.reads == "states" else ():
            tokens = [*request.prompt.tolist(), *branch.tokens]
            if branch.tokens and tokens[-1] in engine.config.eos_tokens:
                del tokens[-1]  # The state after EOS has no meaning.
            readers.append(LastStateReader(cast(ReadsStates, scorer).network))
            one = reading_request(
                engine.config, tokens[: engine.config.context_length - 1], readers[-1],
                priority=request.priority, salt=request.salt, owner=request.owner,
            )  # fmt: skip
            reading.append(engine.add(one))
            self.readings.append(reading[-1])
        while not all(sequence.finished for sequence in reading):
            yield
        for sequence in reading:
            if sequence.error is not None:
                raise sequence.error
        outputs = [reader.output for reader in readers]
        read = np.stack(outputs) if outputs else np.empty((0, 0), np.float32)
        scores = list(scorer.rate(Rated(self._prompt, request.prompt, asked.branches, read)))
        if len(scores) != len(asked.branches):
            fix = f"it must give {len(asked.branches)} scores, one for each output"
            raise InvalidInput("scorer", scores, fix)
        scores = [number()("scorer", score) for score in scores]
        rated = zip(asked.branches, scores)
        self.scores |= {own: score for each, score in rated if (own := each.sequence) is not None}
        return scores

    def _grow(self, asked: Grow) -> Generator[None, None, list[Branch]]:
        """Grow branches until all have ended, or until ``asked.enough`` returns True."""
        width = sum(start.width for start in asked.starts)
        if not 1 <= width <= self._most:
            fix = f"this search may grow 1 to {self._most} outputs at a time"
            raise InvalidInput("branches", width, fix)
        if len(self.sequences) + len(asked.starts) > MOST_STARTED:
            raise CapacityError(f"a search may begin {MOST_STARTED} branches; lower its budget")
        share = (self._budget - sum(self.made)) // width
        if share < 1:
            fix = "lower the number of branches or max_tokens"
            raise CapacityError(f"the search has used its {self._budget} tokens; {fix}")
        self._growing = [_Begun(start, self._request_of(start, share)) for start in asked.starts]
        ended = False
        while not ended:
            self._begin_waiting()
            yield
            begun = [each.sequence for each in self._growing if each.sequence is not None]
            for sequence in begun:
                if sequence.error is not None:
                    raise sequence.error
            ended = len(begun) == len(self._growing) and all(each.finished for each in begun)
            ended = ended or (asked.enough is not None and asked.enough(self._branches()))
        self._cancel()
        return self._branches("cancelled")

    def _begin_waiting(self) -> None:
        """Begin the first branch of each prefix. Begin the others once it has read the prefix."""
        readers: dict[tuple[int, ...], LiveSequence] = {}
        for growing in self._growing:
            reader = readers.get(growing.start.tokens)
            if growing.sequence is None and (reader is None or reader.trace or reader.finished):
                growing.sequence = self.engine.add(growing.request)
                self.sequences.append(growing.sequence)
                self.starts.append(growing.start)
            if reader is None and growing.sequence is not None:
                readers[growing.start.tokens] = growing.sequence

    def _request_of(self, start: Start, share: int) -> GenerationRequest:
        params = start.params or self.request.params
        assert params.seed is not None
        left = min(share, params.max_tokens - len(start.tokens))
        most = left if start.max_tokens is None else min(start.max_tokens, left)
        if most < 1:
            raise DecoderError("a branch was begun behind its last token")
        seed = params.seed if start.seed == 0 else key(params.seed, start.seed, Purpose.CHILD_SEED)
        end = len(start.tokens) + most
        params = replace(
            params, seed=seed, max_tokens=end, min_tokens=min(end, params.min_tokens),
            logprobs=0 if start.score and params.logprobs is None else params.logprobs,
        )  # fmt: skip
        decoder = start.decoder or self.request.decoder
        deadline = self.request.deadline
        if deadline is not None:
            deadline = max(0.0, deadline - (time.perf_counter() - self.started))
        # The branch continues after the output so far. Penalties, constraint and stop texts apply
        # to the whole output.
        return replace(
            self.request, resume=start.tokens, params=params, deadline=deadline, forks=start.forks,
            decoder=StepDecoder(decoder, start.marks) if start.marks else decoder,
        )  # fmt: skip

    def _branches(self, waiting: str | None = None) -> list[Branch]:
        """Return the present branches.

        ``waiting`` becomes the reason of branches that have not begun.
        """
        return [self._branch(growing, waiting) for growing in self._growing]

    def _branch(self, growing: _Begun, waiting: str | None) -> Branch:
        start, sequence = growing.start, growing.sequence
        if sequence is None:
            return Branch(start, None, start.tokens, 0, "", waiting, False)
        own = _made(start, sequence)
        if not sequence.finished:  # Called after every step, so tokens are not copied.
            return Branch(start, sequence, (), own, "", None, False)
        text, reason = sequence.text, sequence.finish_reason
        marked = isinstance(text, StepText) and text.marked
        end = min(sequence.prompt_length + self.request.params.max_tokens, sequence.context)
        return Branch(
            start, sequence, tuple(sequence.output), own, text.value, reason,
            at_end=(reason == "stop" and not marked) or len(sequence.tokens) >= end,
            logprob=sum(entry.logprob for entry in sequence.logprobs),
        )  # fmt: skip

    def _cancel(self) -> None:
        for growing in self._growing:
            if growing.sequence is not None:
                self.engine.cancel(growing.sequence)
        for reading in self.readings:
            if not reading.finished:
                self.engine.cancel(reading)


def _made(start: Start, sequence: LiveSequence) -> int:
    return len(sequence.tokens) - sequence.prompt_length - len(start.tokens)
