"""Turn one output of a request into events: chunks of new tokens, and its end."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from paradecode.constraints.thoughts import CLOSE, OPENING
from paradecode.core.trace import TokenLogprob
from paradecode.engine.prompt import CandidateReader, PromptReader
from paradecode.engine.sequence import LiveSequence
from paradecode.models.tokenizer import Tokenizer
from paradecode.models.vocabulary import spelling
from paradecode.serve.wire import LEAST_LOGPROB, Done, Generate, OutputChunk, WireCommit, WireScores

OPENING_TOKENS = 16
"""The number of an output's first tokens that are searched for the mark that opens reasoning."""


class Speller:
    """Returns the bytes and texts of single tokens, which it caches."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._known: dict[int, bytes] = {}

    def bytes(self, token: int) -> bytes:
        """Return the bytes of a token. A control token has the bytes of its name."""
        found = self._known.get(token)
        if found is None:
            control = self._tokenizer.is_control(token)
            name = self._tokenizer.token(token).encode() if control else b""
            found = self._known[token] = name or spelling(self._tokenizer, token)
        return found

    def text(self, token: int) -> str:
        return self.bytes(token).decode("utf-8", "replace")

    def scores(self, found: Sequence[TokenLogprob]) -> WireScores:
        entries = [entry for one in found for entry in ((one.token, one.logprob), *one.top)]
        return WireScores(
            sizes=[1 + len(one.top) for one in found],
            tokens=[token for token, _ in entries],
            logprobs=[max(LEAST_LOGPROB, value) for _, value in entries],
            spelled=[self.bytes(token).decode("latin-1") for token, _ in entries],
        )


class OutputReport:
    """Reports the progress of one sequence in pieces.

    Args:
        index: index of the output in the request.
        method: spec of the method that decodes the output.
        reader: the reader of the prompt or of its candidates, if nothing is generated.
        thinks: whether the prompt has opened the output's reasoning.
    """

    def __init__(
        self,
        request: Generate,
        index: int,
        sequence: LiveSequence,
        method: str,
        speller: Speller,
        reader: PromptReader | CandidateReader | None = None,
        thinks: bool = False,
    ) -> None:
        self.request, self.index, self.sequence, self.method = request, index, sequence, method
        self._speller = speller
        self._steps = 0
        self._reader, self._thinks = reader, thinks

    def chunk(self) -> OutputChunk | None:
        """Return a chunk of everything since the last call, or None if there is nothing to show."""
        seq = self.sequence
        if isinstance(self._reader, PromptReader):
            return self._prompt(self._reader)
        if self._reader is not None:
            ranked = [[max(LEAST_LOGPROB, entry.logprob) for entry in entries]
                      for entries in self._reader.logprobs]  # fmt: skip
            return OutputChunk(
                id=self.request.id, index=self.index, text="", tokens=[], forward=0, ranked=ranked
            )
        commits = seq.take()
        canvas = None
        if self.request.provisional and len(seq.trace) > self._steps and not seq.finished:
            shown = self._speller.text
            canvas = [None if token is None else shown(token) for token in seq.provisional]
        self._steps = len(seq.trace)
        logprobs = None
        if seq.params.logprobs is not None:
            logprobs = self._speller.scores(seq.take_logprobs())
        if not (commits or canvas):
            return None
        return OutputChunk(
            id=self.request.id,
            index=self.index,
            text="".join(commit.text for commit in commits),
            tokens=[token for commit in commits for token in commit.tokens],
            forward=seq.forwards,
            commits=[WireCommit(forward, len(ids), len(text)) for forward, ids, text in commits],
            logprobs=logprobs,
            canvas=canvas,
        )

    def _prompt(self, reader: PromptReader) -> OutputChunk:
        tokens = self.sequence.tokens.tolist()
        scored = [TokenLogprob(tokens[0], 0.0, ()), *reader.logprobs]
        return OutputChunk(
            id=self.request.id, index=self.index, text="", tokens=tokens, forward=0,
            logprobs=None if reader.top is None else self._speller.scores(scored),
            embedding=None if reader.norm is None else reader.mean.tolist(),
        )  # fmt: skip

    def done(self) -> Done:
        """Return the event for the end of a sequence that has finished without an error."""
        seq = self.sequence
        return Done(
            id=self.request.id,
            index=self.index,
            finish_reason=seq.finish_reason or "cancelled",  # type: ignore[arg-type]
            method=self.method,
            stats=seq.stats,
            stopped=seq.text.stopped if seq.finish_reason == "stop" else None,
            predicted=self.request.prediction is not None,
            diffusion_steps=sum(step.canvas is not None for step in seq.trace),
            time_to_first_token=self._first_token(),
            reasoning=self._reasoning(),
        )

    def _reasoning(self) -> int:
        """Count the tokens between the marks of the output's reasoning."""
        tokens = self.sequence.output
        first = b"".join(map(self._speller.bytes, tokens[:OPENING_TOKENS]))
        opening = OPENING.match(first)
        if not (self._thinks or opening):
            return 0
        ends = [*accumulate(len(self._speller.bytes(token)) for token in tokens)]
        text = b"".join(map(self._speller.bytes, tokens))
        start = 0 if self._thinks or opening is None else opening.end()
        stop = text.find(CLOSE, start)
        stop = len(text) if stop < 0 else stop
        return bisect_left(ends, stop) + 1 - bisect_right(ends, start) if stop > start else 0

    def _first_token(self) -> float | None:
        seconds = self.sequence.admitted - self.sequence.arrived
        for step in self.sequence.trace:
            seconds += step.seconds
            if step.tokens:
                return seconds
        return None
