"""``POST /v1/chat/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from paradecode.serve.documents import posts
from paradecode.serve.generation import Job, Output
from paradecode.serve.outputs import chat_logprobs, metrics, now, progress, reason, usage
from paradecode.serve.protocol.answers import ChatCompletion
from paradecode.serve.protocol.chat import ChatRequest
from paradecode.serve.reading import reading
from paradecode.serve.sse import DONE, EventStream, event, unless_gone
from paradecode.serve.tool_calls import CallReader, Delta, message
from paradecode.serve.wire import Done, OutputChunk

router = APIRouter()


@router.post("/v1/chat/completions", **posts(ChatRequest, ChatCompletion, streams=True))
async def chat(
    request: Request, body: Annotated[ChatRequest, Depends(reading(ChatRequest))]
) -> Response:
    """Answer a conversation."""
    job = Job(request, body, body.n or 1)
    job.ask(
        [body.prompt(job.model.ready.tools)],
        body.sampling(),
        body.constraint(),
        body.predicted,
        body.provisional or False,
    )
    answer = _Answer(job, body)
    if body.stream:
        return await EventStream.begin(request, answer.stream())
    return JSONResponse(answer.whole(await unless_gone(request, job.outputs())))


class _Answer:
    """Outputs in the form of one answer, or of its chunks."""

    def __init__(self, job: Job, body: ChatRequest) -> None:
        self.job, self.body = job, body
        self.common = {
            "id": f"chatcmpl-{job.note.id}", "created": now(), "model": job.model.name,
            "system_fingerprint": None,
        }  # fmt: skip
        names = [tool.function.name for tool in body.callable_tools()]
        self.readers = [CallReader(names) if names else None for _ in range(job.n)]
        self.counts = bool(body.stream_options and body.stream_options.include_usage)
        self.quiet = {"usage": None} if self.counts else {}

    def whole(self, outputs: list[Output]) -> dict[str, Any]:
        done = [output.done for output in outputs if output.done is not None]
        answer = {
            "object": "chat.completion",
            **self.common,
            "choices": [self._choice(index, output) for index, output in enumerate(outputs)],
            "usage": usage(done, self.job.n),
        }
        return answer | ({"metrics": metrics(done)} if self.body.include_metrics else {})

    async def stream(self) -> AsyncGenerator[bytes, None]:
        done: dict[int, Done] = {}
        async with aclosing(await self.job.started()) as events:
            for index in range(self.job.n):
                yield self._chunk(index, {"role": "assistant", "content": ""})
            async for index, news in events:
                if isinstance(news, OutputChunk):
                    for data in self._news(index, news):
                        yield data
                else:
                    done[index] = news
                    for delta in self._held(index):
                        yield self._chunk(index, delta)
                    yield self._chunk(index, {}, **self._reason(index, news))
        ended = [done[index] for index in sorted(done)]
        if self.counts or self.body.include_metrics:
            last: dict[str, Any] = {"choices": [], "usage": usage(ended, self.job.n)}
            if self.body.include_metrics:
                last["metrics"] = metrics(ended)
            yield event({"object": "chat.completion.chunk", **self.common, **last})
        yield DONE

    def _choice(self, index: int, output: Output) -> dict[str, Any]:
        assert output.done is not None
        deltas = [*self._deltas(index, output.text), *self._held(index)]
        return {
            "index": index,
            "message": message(deltas),
            "logprobs": chat_logprobs(output.logprobs) if self.body.logprobs else None,
            **self._reason(index, output.done),
        }

    def _news(self, index: int, chunk: OutputChunk) -> Iterator[bytes]:
        """The events of one chunk: as many as it has deltas; its details go with the first."""
        deltas = self._deltas(index, chunk.text)
        details: dict[str, Any] = {}
        if chunk.logprobs:
            details["logprobs"] = chat_logprobs(chunk.logprobs)
        shown = {"paradecode": progress(chunk)} if self._shows(chunk) else {}
        if not deltas and (details or shown):
            deltas = [{}]
        for delta in deltas:
            yield self._chunk(index, delta, shown, **details)
            details, shown = {}, {}

    def _shows(self, chunk: OutputChunk) -> bool:
        return bool(self.body.include_metrics) or chunk.canvas is not None

    def _deltas(self, index: int, text: str) -> list[Delta]:
        reader = self.readers[index]
        if reader is not None:
            return reader.feed(text)
        return [{"content": text}] if text else []

    def _held(self, index: int) -> list[Delta]:
        reader = self.readers[index]
        return [] if reader is None else reader.finish()

    def _reason(self, index: int, done: Done) -> dict[str, Any]:
        reader = self.readers[index]
        if reader is not None and reader.calls and done.finish_reason == "stop":
            return {"finish_reason": "tool_calls"}
        return reason(done)

    def _chunk(
        self, index: int, delta: Delta, shown: dict[str, Any] | None = None, **choice: Any
    ) -> bytes:
        filled = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None} | choice
        head = {"object": "chat.completion.chunk", **self.common}
        return event({**head, "choices": [filled], **self.quiet, **(shown or {})})
