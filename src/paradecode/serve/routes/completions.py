"""``POST /v1/completions``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from paradecode.serve.documents import posts
from paradecode.serve.generation import Generation, WholeOutput
from paradecode.serve.outputs import progress, reason, text_logprobs
from paradecode.serve.protocol.answers import TextCompletion
from paradecode.serve.protocol.completions import CompletionRequest
from paradecode.serve.reading import reading
from paradecode.serve.routes.reply import ChoicesReply, Part
from paradecode.serve.wire import Done, OutputChunk

router = APIRouter()


@router.post("/v1/completions", **posts(CompletionRequest, TextCompletion, streams=True))
async def complete(
    request: Request, body: Annotated[CompletionRequest, Depends(reading(CompletionRequest))]
) -> Response:
    """Continue texts or lists of token ids."""
    job = Generation(request, body, body.n or 1)
    return await _CompletionReply(job, body, body.prompts()).response(request)


class _CompletionReply(ChoicesReply):
    prefix, kind, part_kind = "cmpl", "text_completion", "text_completion"
    body: CompletionRequest

    def choice(self, index: int, output: WholeOutput) -> dict[str, Any]:
        found = None if self.body.logprobs is None else text_logprobs(output.logprobs, 0)
        return {"index": index, "text": output.text, "logprobs": found, **reason(output.done)}

    def first_choices(self) -> list[dict[str, Any]]:
        self.offsets: Counter[int] = Counter()
        return [_choice(0)]

    def parts(self, index: int, news: OutputChunk | Done) -> Iterator[Part]:
        if isinstance(news, Done):
            yield _choice(index, **reason(news)), {}
            return
        found = None
        if news.logprobs:
            found = text_logprobs(news.logprobs, self.offsets[index])
            self.offsets[index] += sum(len(text) for text in found["tokens"])
        shown = {"paradecode": progress(news)} if self.shows(news) else {}
        if news.text or found or shown:
            yield _choice(index, news.text, logprobs=found), shown


def _choice(index: int, text: str = "", **details: Any) -> dict[str, Any]:
    empty = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
    return empty | details
