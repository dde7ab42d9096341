"""The engine loop of a worker: take messages, make a step, and report."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from paradecode.core.decoder import TARGET
from paradecode.engine.prompt import CandidateReader, PromptReader
from paradecode.engine.request import GenerationRequest
from paradecode.engine.sequence import LiveSequence
from paradecode.llm import LLM
from paradecode.methods.specs import Spec
from paradecode.serve import wire
from paradecode.serve.failures import busy, failure
from paradecode.serve.lines import WireError, decode
from paradecode.serve.worker.admission import Admission
from paradecode.serve.worker.inbox import Inbox
from paradecode.serve.worker.memory import resident
from paradecode.serve.worker.output import OutputReport, Speller
from paradecode.serve.worker.prepare import Preparer
from paradecode.serve.worker.searching import SearchJob
from paradecode.serve.worker.settings import WorkerSettings
from paradecode.serve.worker.slow import SlowMessage

_log = logging.getLogger(__name__)


class Prepared:
    """A request whose prompt and settings are ready for the engine.

    Attributes:
        outputs: one request to the engine for each output.
        indexes: indices of these outputs in the request.
        resumed: whether the outputs continue where another worker stopped. A canvas starts again.
    """

    def __init__(self, request: wire.Generate, preparer: Preparer) -> None:
        self.id, self.request, self.outputs = request.id, request, preparer.requests(request)
        self.indexes = list(range(len(self.outputs)))
        method = self.outputs[0].decoder
        forward = isinstance(method, Spec) and method.method.family == "autoregressive"
        self.resumed = request.resume is not None and forward and request.search is None
        if request.resume is not None and self.resumed:
            left = zip(self.outputs, request.resume, strict=True)
            self.indexes = [at for at, tokens in enumerate(request.resume) if tokens is not None]
            self.outputs = [replace(one, resume=tuple(t)) for one, t in left if t is not None]


@dataclass(frozen=True)
class Answered:
    """Marks that a question was answered apart from the engine, while it made a step."""

    id: str


LONG = 1 << 16
"""Bytes above which a line is prepared in another thread, so that short lines need not wait."""

Message = wire.Request | Prepared | Answered | wire.Failure


class Loop:
    """Serves one model until the stream of messages ends, or until a drain is complete.

    Args:
        send: writes events in order, and returns the ids of requests whose events could not be
            written. Several threads call it.

    Attributes:
        jobs: id of a live request -> its outputs.
        searches: id of a live request -> its search.
    """

    def __init__(
        self,
        llm: LLM,
        settings: WorkerSettings,
        send: Callable[[Iterable[wire.Event]], Collection[str]],
    ) -> None:
        self._llm, self._engine, self._write = llm, llm.engine, send
        self._speller = Speller(llm.tokenizer)
        self._preparer = Preparer(llm, settings, self._speller)
        self._admission = Admission(llm.engine, settings)
        self.jobs: dict[str, list[OutputReport]] = {}
        self.searches: dict[str, SearchJob] = {}
        self._scorer = settings.scorer
        self._outputs: dict[LiveSequence, OutputReport] = {}
        self._later: dict[str, bool] = {}
        """Id of a request that takes long to prepare -> whether the request is still wanted."""
        self._steps = 0

    def warm(self) -> None:
        """Do at the start what the first requests would otherwise wait for."""
        self._preparer.warm()

    def read(self, line: bytes) -> Message | SlowMessage[Message] | None:
        """Turn a line into a message, and prepare it as far as possible without the engine.

        The function never raises. Questions about tokens are answered at once, because a step of
        the engine may read a long prompt. They make no message.
        """
        try:
            message: wire.Request = decode(line, wire.REQUESTS)
        except WireError as error:
            return failure(error.id or wire.WORKER, error)
        if not isinstance(message, (wire.Generate, wire.Tokenize, wire.Detokenize)):
            return message
        request, key, kind, size = message, "", "long texts", len(line)
        if isinstance(message, wire.Generate):
            kind = kind if message.constraint is None else "constraints"
            key = message.key
            if message.resume is not None:
                # Another worker had accepted this request. So it is not refused, and new requests
                # do not delay it.
                key, size = message.id, 0
        if kind == "long texts" and len(line) < LONG:
            made = self._prepared(message)
            return None if isinstance(made, Answered) else made
        wait = f"too many {kind} wait to be prepared; try again later"
        return SlowMessage(
            message.id, kind, key, size, lambda: self._prepared(request),
            lambda: busy(request.id, wait),
        )  # fmt: skip

    def _prepared(self, message: wire.Generate | wire.Tokenize | wire.Detokenize) -> Message:
        try:
            if isinstance(message, wire.Generate):
                if not self._later.get(message.id, True):  # It was cancelled meanwhile.
                    return wire.Failure(id=message.id, status=400, message="it was cancelled")
                return Prepared(message, self._preparer)
            self._write([self._answer(message)])
            return Answered(message.id)
        except Exception as error:
            return failure(message.id, error)

    def _answer(self, message: wire.Tokenize | wire.Detokenize) -> wire.Event:
        if isinstance(message, wire.Tokenize):
            tokens, texts = self._preparer.tokenized(message.prompt)
            return wire.TokenizedPrompt(id=message.id, tokens=tokens, texts=texts)
        return wire.DecodedText(id=message.id, text=self._preparer.text(message.tokens))

    def run(self, inbox: Inbox[Message]) -> bool:
        """Serve until the stream ends or a drain is complete. Return False if the engine broke."""
        while self.jobs or self.searches or self._later or not self._admission.draining:
            for message in inbox.take(wait=not self._engine.busy):
                if message is None:  # The front has gone.
                    return True
                self._send(self.handle(message))
            if self._engine.busy and not self.step():
                return False
        return True

    def handle(self, message: Message | SlowMessage[Message]) -> list[wire.Event]:
        """Do what a message asks for, and return the events that answer it at once."""
        if isinstance(message, SlowMessage):
            self._later[message.id] = True
            return []
        if isinstance(message, (Prepared, wire.Failure)):
            wanted = self._later.pop(message.id, True)
            if isinstance(message, wire.Failure):
                return [message]
            return [*self._accept(message), *([] if wanted else self._cancel(message.id))]
        if isinstance(message, wire.Cancel):
            if message.id in self._later:
                self._later[message.id] = False
            return self._cancel(message.id)
        if isinstance(message, wire.Drain):
            self._admission.draining = True
            return []
        if isinstance(message, wire.AskStats):
            return [self._stats(message.id)]
        if isinstance(message, wire.AskBlocks):
            return [self._blocks(message)]
        assert isinstance(message, Answered)
        self._later.pop(message.id, None)
        return []

    def _send(self, events: Iterable[wire.Event]) -> None:
        """Write events. A request whose event cannot be written ends, and gets no further event."""
        for id in self._write(events):
            self._cancel(id)

    def _cancel(self, id: str) -> list[wire.Event]:
        if id in self.searches:
            return self.searches.pop(id).cancelled()
        outputs = self.jobs.get(id, [])
        for output in outputs:
            self._engine.cancel(output.sequence)
        return [event for output in outputs for event in self._report(output)]

    def step(self) -> bool:
        """Do one step of the engine, and send its events.

        Return False if the engine itself broke.
        """
        try:
            changed = self._engine.step()
        except Exception:
            _log.exception("the engine failed")
            message = "the engine failed and starts anew"
            ids = [*self.jobs, *self.searches]
            self._send([wire.Failure(id=id, status=500, message=message) for id in ids])
            return False
        self._steps += 1
        news: list[wire.Event] = []
        for sequence in dict.fromkeys(changed):
            output = self._outputs.get(sequence)
            if output is not None:  # Otherwise its request has ended in this step.
                news += self._report(output)
        for id in [*self.searches]:
            news += self._advance(id)
        self._send(news)
        return True

    def _advance(self, id: str) -> list[wire.Event]:
        """Continue a search, and return its events."""
        job = self.searches[id]
        events = job.events()
        if job.run.finished:
            del self.searches[id]
            self._admission.served(job.run.ended - job.run.started)
        return events

    def _accept(self, prepared: Prepared) -> list[wire.Event]:
        request = prepared.request
        if request.id in self.jobs or request.id in self.searches:
            return []  # The id is in use: ignore it, as a failure would end the first request.
        wide = 1 if request.search is None else request.search.branches
        begun = request.resume is not None
        refusal = self._admission.refusal(request.id, prepared.outputs * wide, begun)
        if refusal is not None:
            return [refusal]
        if request.search is not None:
            return self._begin(request, prepared.outputs[0])
        sequences: list[LiveSequence] = []
        try:
            for one in prepared.outputs:
                sequences.append(self._engine.add(one))
        except Exception as error:
            for sequence in sequences:
                self._engine.cancel(sequence)
            return [failure(request.id, error)]
        job, prompt = [], prepared.outputs[0].prompt
        thinks = self._preparer.thinks(request.prompt, prompt.tolist())
        for index, one, sequence in zip(prepared.indexes, prepared.outputs, sequences, strict=True):
            method = str(one.decoder) if isinstance(one.decoder, Spec) else "custom"
            readers = PromptReader, CandidateReader
            reader = one.decoder if isinstance(one.decoder, readers) else None
            output = OutputReport(request, index, sequence, method, self._speller, reader, thinks)
            self._outputs[sequence] = output
            job.append(output)
        self.jobs[request.id] = job
        accepted = wire.Accepted(
            id=request.id, prompt_tokens=len(prompt), resumed=prepared.resumed, thinks=thinks
        )  # fmt: skip
        return [accepted]

    def _begin(self, message: wire.Generate, request: GenerationRequest) -> list[wire.Event]:
        try:
            job = SearchJob(self._llm, message, request, self._speller, self._scorer)
        except Exception as error:
            return [failure(message.id, error)]
        self.searches[message.id] = job
        thinks = self._preparer.thinks(message.prompt, request.prompt.tolist())
        accepted = wire.Accepted(id=message.id, prompt_tokens=len(request.prompt), thinks=thinks)
        if job.run.error is not None:
            return self._advance(message.id)
        return [accepted, *self._advance(message.id)]

    def _report(self, output: OutputReport) -> list[wire.Event]:
        sequence, id = output.sequence, output.request.id
        if sequence not in self._outputs:
            return []
        if sequence.error is not None:
            for other in self.jobs[id]:
                self._engine.cancel(other.sequence)
                self._outputs.pop(other.sequence, None)
            del self.jobs[id]
            return [failure(id, sequence.error)]
        chunk = output.chunk()
        events: list[wire.Event] = [] if chunk is None else [chunk]
        if sequence.finished:
            del self._outputs[sequence]
            events.append(output.done())
            if sequence.finish_reason in ("stop", "length"):
                self._admission.served(sequence.ended - sequence.admitted)
            if not any(other.sequence in self._outputs for other in self.jobs[id]):
                del self.jobs[id]
        return events

    def _blocks(self, asked: wire.AskBlocks) -> wire.CachedBlocks:
        pool = self._engine.pools[TARGET]
        whole, stored, removed = pool.changed(asked.since)
        return wire.CachedBlocks(
            id=asked.id, next=pool.changes, whole=whole, stats=self._stats(asked.id),
            stored=[key.hex() for key in stored], removed=[key.hex() for key in removed],
        )  # fmt: skip

    def _stats(self, id: str) -> wire.WorkerStats:
        engine, pools = self._engine, self._engine.pools.values()
        return wire.WorkerStats(
            id=id, running=len(engine.running), waiting=len(engine.queue),
            waiting_tokens=engine.queue.tokens, batch=engine.limits.batch,
            pages=sum(pool.count for pool in pools), held_pages=sum(pool.held for pool in pools),
            idle_pages=sum(pool.idle for pool in pools), forwards=engine.forwards,
            steps=self._steps, refused=self._admission.refused, memory_bytes=resident(),
            state_bytes=sum(pools.held_bytes for pools in engine.states.values()),
        )  # fmt: skip
