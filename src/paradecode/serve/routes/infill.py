"""``POST /infill`` and ``POST /completion``, in llama.cpp's form."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from paradecode.serve.documents import posts
from paradecode.serve.generation import Generation, WholeOutput
from paradecode.serve.protocol.answers import Infilled
from paradecode.serve.protocol.completions import (
    InfillRequest,
    NativeCompletionRequest,
    NativeRequest,
    between,
    prompt_inputs,
)
from paradecode.serve.reading import reading
from paradecode.serve.routes.reply import RouteReply
from paradecode.serve.sse import event
from paradecode.serve.wire import Done, OutputChunk, PromptInput

router = APIRouter()
ENDS = {"stop": "eos", "length": "limit"}


@router.post("/infill", **posts(InfillRequest, Infilled, streams=True))
async def infill(
    request: Request, body: Annotated[InfillRequest, Depends(reading(InfillRequest))]
) -> Response:
    """Write the text between a prefix and a suffix."""
    job = Generation(request, body)
    prompt = between(job.model.ready.fim, body.prefix, body.input_suffix, body.prompt)
    return await _NativeReply(job, body, prompt).response(request)


@router.post("/completion", **posts(NativeCompletionRequest, Infilled, streams=True))
async def complete(
    request: Request,
    body: Annotated[NativeCompletionRequest, Depends(reading(NativeCompletionRequest))],
) -> Response:
    """Continue a text, or a list of token ids."""
    job, (prompt,) = Generation(request, body), prompt_inputs(body.prompt)
    return await _NativeReply(job, body, prompt).response(request)


class _NativeReply(RouteReply):
    def __init__(self, job: Generation, body: NativeRequest, prompt: PromptInput) -> None:
        super().__init__(job)
        job.ask([prompt], body.sampling(), constraint=body.constraint())

    def whole(self, outputs: list[WholeOutput]) -> dict[str, Any]:
        return self._last(outputs[0].done, outputs[0].text)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        async with aclosing(await self.job.started()) as events:
            yield event({"content": "", "stop": False})
            async for _, news in events:
                if isinstance(news, Done):
                    yield event(self._last(news, ""))
                elif isinstance(news, OutputChunk) and news.text:
                    yield event({"content": news.text, "stop": False})

    def _last(self, done: Done, text: str) -> dict[str, Any]:
        return {
            "content": text, "stop": True, "model": self.job.model.name,
            "stop_type": "word" if done.stopped else ENDS.get(done.finish_reason, "limit"),
            "stopping_word": done.stopped or "", "truncated": False,
            "tokens_evaluated": done.stats.prompt_tokens, "tokens_predicted": done.stats.generated,
            "tokens_cached": done.stats.cached_tokens,
        }  # fmt: skip
