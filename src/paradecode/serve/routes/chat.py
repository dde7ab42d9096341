"""``POST /v1/chat/completions``: answers to conversations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from paradecode.serve.documents import posts
from paradecode.serve.generation import Generation, WholeOutput
from paradecode.serve.outputs import progress, reason
from paradecode.serve.protocol.answers import ChatCompletion, StreamedChoices
from paradecode.serve.protocol.chat import ChatRequest
from paradecode.serve.reading import apart, reading
from paradecode.serve.routes.prompts import read
from paradecode.serve.routes.reply import ChoicesReply, Part
from paradecode.serve.scores import ScoreColumns, chat_logprobs, prompt_logprobs
from paradecode.serve.tool_calls import Delta, message
from paradecode.serve.wire import Done, OutputChunk

router = APIRouter()


@router.post("/chat/completions", include_in_schema=False)
@router.post("/v1/chat/completions", **posts(ChatRequest, ChatCompletion, streams=StreamedChoices))
async def chat(
    request: Request, body: Annotated[ChatRequest, Depends(reading(ChatRequest))]
) -> Response:
    """Answer a conversation."""
    top, job = body.prompt_logprobs, Generation(request, body, body.n or 1)

    def asked() -> _ChatReply:
        return _ChatReply(job, body, [body.prompt(job.model.ready.tools)])

    reply = await apart(request, asked)
    if top is not None:
        _, (scored,) = await read(request, body, [job.requests[0].prompt], "logprobs", top)
        reply.more["prompt_logprobs"] = prompt_logprobs(scored.scores)
    return await reply.response(request)


class _ChatReply(ChoicesReply):
    prefix, kind, part_kind = "chatcmpl", "chat.completion", "chat.completion.chunk"
    body: ChatRequest

    def __init__(self, job: Generation, body: ChatRequest, prompts: list[Any]) -> None:
        super().__init__(job, body, prompts)
        self.readers = [body.calls(lambda: job.thinks) for _ in range(job.n)]

    def choice(self, index: int, output: WholeOutput) -> dict[str, Any]:
        reader = self.readers[index]
        return {
            "index": index,
            "message": message([*reader.feed(output.text), *reader.finish()]),
            "logprobs": chat_logprobs(output.scores) if self.body.logprobs else None,
            **self._reason(index, output.done),
        }

    def first_choices(self) -> list[dict[str, Any]]:
        said = {"role": "assistant", "content": ""}
        return [_choice(index, said) for index in range(self.job.n)]

    def quiet_choice(self, index: int) -> dict[str, Any]:
        return _choice(index, {})

    def parts(self, index: int, news: OutputChunk | Done) -> Iterator[Part]:
        """Yield the choices of an event, one for each delta. The first one carries the details."""
        reader = self.readers[index]
        if isinstance(news, Done):
            for delta in reader.finish():
                yield _choice(index, delta), {}
            yield _choice(index, {}, **self._reason(index, news)), {}
            return
        scores = ScoreColumns(news.logprobs)
        details = {"logprobs": chat_logprobs(scores)} if len(scores) else {}
        shown = {"paradecode": progress(news)} if self.shows(news) else {}
        for delta in reader.feed(news.text) or ([{}] if details or shown else []):
            yield _choice(index, delta, **details), shown
            details, shown = {}, {}

    def _reason(self, index: int, done: Done) -> dict[str, Any]:
        if self.readers[index].calls and done.finish_reason == "stop":
            return {"finish_reason": "tool_calls"}
        return reason(done)


def _choice(index: int, delta: Delta, **details: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None} | details
