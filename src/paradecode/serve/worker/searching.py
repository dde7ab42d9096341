"""Run a search in a worker.

Its branches run beside all other requests, and it reports like them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paradecode.completion import Completion
from paradecode.core.errors import InvalidInput
from paradecode.core.trace import Stats
from paradecode.engine.request import GenerationRequest
from paradecode.llm import LLM
from paradecode.search.completion import completion_of_search
from paradecode.search.run import SearchRun
from paradecode.search.scorers.scorer import find_scorer
from paradecode.search.strategies import find_strategy
from paradecode.serve.call import outputs_of
from paradecode.serve.failures import failure
from paradecode.serve.wire import (
    BranchNews,
    Done,
    Event,
    Generate,
    OutputChunk,
    SearchSpec,
    WireSearch,
)
from paradecode.serve.worker.output import Speller


class SearchJob:
    """One search, and what was reported about it.

    Args:
        message: the message, which has a ``search``.
        request: the request to the engine from which branches are made.
        scorer: spec of the worker's own scorer, for a search that names none.

    Raises:
        InvalidInput: if the strategy or the scorer is unknown, or names a file.
    """

    def __init__(
        self,
        llm: LLM,
        message: Generate,
        request: GenerationRequest,
        speller: Speller,
        scorer: str | None,
    ) -> None:
        spec = message.search
        assert isinstance(spec, SearchSpec)
        strategy = find_strategy(spec.strategy, trusted=False)
        own = find_scorer(spec.scorer, trusted=False) if spec.scorer else find_scorer(scorer)
        self.message, self.outputs, self._shows = message, outputs_of(message), spec.shows
        self._speller, self._told = speller, dict[int, tuple[str | None, float | None]]()
        self.run = SearchRun(
            llm.engine, llm.engine.seeded(request), strategy, llm.tokenizer.decode,
            llm.tokenizer.decode(request.prompt.tolist()), own, spec.branches, spec.tokens,
        )  # fmt: skip

    def cancelled(self) -> list[Event]:
        """End the search now, and return its last events."""
        self.run.close()
        ended = Done(
            id=self.message.id, index=0, finish_reason="cancelled", stats=Stats(),
            method=str(self.run.request.decoder),
        )  # fmt: skip
        return [replace(ended, index=index) for index in range(self.outputs)]

    def events(self) -> list[Event]:
        """Return the events since the last call. The last events report the end of the search."""
        self.run.advance()
        events: list[Event] = [*self._branches()] if self._shows else []
        if not self.run.finished:
            return events
        if self.run.error is not None:
            return [*events, failure(self.message.id, self.run.error)]
        found = completion_of_search(self.run)
        whole = [one for one in (found, *found.alternatives) if one.finish_reason != "cancelled"]
        if len(whole) < self.outputs:
            fix = f"this search has found {len(whole)}: ask for so many"
            return [*events, failure(self.message.id, InvalidInput("n", self.outputs, fix))]
        for index, completion in enumerate(whole[: self.outputs]):
            events += self._output(index, completion, found)
        return events

    def _branches(self) -> Iterator[BranchNews]:
        run, numbers = self.run, {sequence: at for at, sequence in enumerate(self.run.sequences)}
        each = zip(run.sequences, run.starts, run.made, strict=True)
        for number, (sequence, start, made) in enumerate(each):
            text = "".join(commit.text for commit in sequence.take())
            score = run.scores.get(sequence)
            state = sequence.finish_reason, score
            if not text and self._told.get(number) == state:
                continue
            self._told[number] = state
            before = None if start.after is None else start.after.sequence
            yield BranchNews(
                id=self.message.id, branch=number, text=text, reason=sequence.finish_reason,
                after=None if before is None else numbers[before], score=score,
                tokens=made,
            )  # fmt: skip

    def _output(self, index: int, completion: Completion, found: Completion) -> Iterator[Event]:
        id, request, cost = self.message.id, self.run.request, found.search
        assert cost is not None
        logprobs = None
        if request.params.logprobs is not None and completion.logprobs is not None:
            logprobs = self._speller.scores(completion.logprobs)
        yield OutputChunk(
            id=id, index=index, text=completion.text, tokens=completion.token_ids,
            forward=completion.stats.forwards, logprobs=logprobs,
        )  # fmt: skip
        place = 0 if completion is found else 1 + found.alternatives.index(completion)
        stats = replace(completion.stats, cached_tokens=self.run.sequences[0].cached_tokens)
        yield Done(
            id=id, index=index, method=str(request.decoder), stats=stats,
            finish_reason=completion.finish_reason,  # type: ignore[arg-type]
            predicted=self.message.prediction is not None,
            search=WireSearch(
                branches=cost.branches, tokens=cost.tokens, rows=cost.rows, seconds=cost.seconds,
                score=cost.scores[place] if place < len(cost.scores) else None,
            ),
        )  # fmt: skip
