"""Base classes for the answers of generating routes: whole, or as a stream of events."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from typing import Any, ClassVar

from fastapi import Request
from starlette.responses import Response

from paradecode.serve.generation import Generation, WholeOutput
from paradecode.serve.outputs import branch, metrics, now, searches, usage
from paradecode.serve.protocol.fields import Sampled
from paradecode.serve.protocol.search import wanted_search
from paradecode.serve.sse import DONE, EventStream, event, unless_gone
from paradecode.serve.whole import whole
from paradecode.serve.wire import BranchNews, Done, OutputChunk, PromptInput

Part = tuple[dict[str, Any], dict[str, Any]]
"""A choice in a streamed event, and the fields of the event beside its choices."""


class RouteReply(ABC):
    """Writes the outputs of a generation in the form of one route."""

    streams: ClassVar[type[EventStream]] = EventStream

    def __init__(self, job: Generation) -> None:
        self.job = job

    @abstractmethod
    def whole(self, outputs: list[WholeOutput]) -> dict[str, Any]:
        """Return the answer, once all outputs have ended."""

    @abstractmethod
    def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the events of a streamed answer."""

    async def response(self, request: Request) -> Response:
        """Return the answer, or its stream if the request asks for one."""
        if self.job.body.stream:
            return await self.streams.begin(request, self.stream())
        return whole(self.whole(await unless_gone(request, self.job.outputs())))


class ChoicesReply(RouteReply):
    """A reply with a list of choices, one for each output, as for chats and completions."""

    prefix: ClassVar[str]
    kind: ClassVar[str]
    part_kind: ClassVar[str]

    def __init__(self, job: Generation, body: Sampled, prompts: Sequence[PromptInput]) -> None:
        super().__init__(job)
        self.body = body
        job.ask(
            prompts, body.sampling(), constraint=body.constraint(), prediction=body.predicted,
            provisional=body.provisional or False, thoughts=body.thoughts,
            search=wanted_search(body, job.n, job.settings.search_tokens, bool(body.stream)),
        )  # fmt: skip
        self.common = {
            "id": f"{self.prefix}-{job.note.id}", "created": now(), "model": job.model.name,
            "system_fingerprint": None,
        }  # fmt: skip
        self.more: dict[str, Any] = {}  # Further fields of a whole answer.
        self.counts = bool(body.stream_options and body.stream_options.include_usage)

    @abstractmethod
    def choice(self, index: int, output: WholeOutput) -> dict[str, Any]:
        """Return the choice of an output in a whole answer."""

    @abstractmethod
    def first_choices(self) -> Iterable[dict[str, Any]]:
        """Return choices that are sent at once, to show that the request was accepted."""

    @abstractmethod
    def quiet_choice(self, index: int) -> dict[str, Any]:
        """Return a choice without content, for an event about something else."""

    @abstractmethod
    def parts(self, index: int, news: OutputChunk | Done) -> Iterator[Part]:
        """Yield the parts that are sent when an output grows or ends."""

    def whole(self, outputs: list[WholeOutput]) -> dict[str, Any]:
        choices = [self.choice(index, output) for index, output in enumerate(outputs)]
        done = [output.done for output in outputs]
        said = {"object": self.kind, **self.common, "choices": choices}
        return {**said, **self._report(done), **self.more}

    async def stream(self) -> AsyncGenerator[bytes, None]:
        head = {"object": self.part_kind, **self.common}
        quiet = {"usage": None} if self.counts else {}
        done: dict[int, Done] = {}
        async with aclosing(await self.job.started()) as events:
            for choice in self.first_choices():
                yield event({**head, "choices": [choice], **quiet})
            async for index, news in events:
                if isinstance(news, BranchNews):
                    choice = self.quiet_choice(index)
                    yield event({**head, "choices": [choice], **quiet, "paradecode": branch(news)})
                    continue
                if isinstance(news, Done):
                    done[index] = news
                for choice, shown in self.parts(index, news):
                    yield event({**head, "choices": [choice], **quiet, **shown})
        if self.counts or self.body.include_metrics or self.job.requests[0].search is not None:
            ended = [done[index] for index in sorted(done)]
            yield event({**head, "choices": [], **self._report(ended)})
        yield DONE

    def shows(self, chunk: OutputChunk) -> bool:
        """Return whether the progress of a chunk is reported."""
        return bool(self.body.include_metrics) or chunk.canvas is not None

    def _report(self, done: list[Done]) -> dict[str, Any]:
        found = {"usage": usage(done, self.job.n)}
        found |= {"search": searches(done)} if any(entry.search for entry in done) else {}
        return found | ({"metrics": metrics(done)} if self.body.include_metrics else {})
