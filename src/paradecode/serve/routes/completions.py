"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from paradecode.serve.documents import posts
from paradecode.serve.generation import Job, Output
from paradecode.serve.outputs import metrics, now, progress, reason, text_logprobs, usage
from paradecode.serve.protocol.answers import TextCompletion
from paradecode.serve.protocol.completions import CompletionRequest
from paradecode.serve.reading import reading
from paradecode.serve.sse import DONE, EventStream, event, unless_gone
from paradecode.serve.wire import Done

router = APIRouter()


@router.post("/v1/completions", **posts(CompletionRequest, TextCompletion, streams=True))
async def complete(
    request: Request, body: Annotated[CompletionRequest, Depends(reading(CompletionRequest))]
) -> Response:
    """Continue texts or lists of token ids."""
    job = Job(request, body, body.n or 1)
    job.ask(
        body.prompts(),
        body.sampling(),
        body.constraint(),
        body.predicted,
        body.provisional or False,
    )
    common = {
        "id": f"cmpl-{job.note.id}", "object": "text_completion", "created": now(),
        "model": job.model.name, "system_fingerprint": None,
    }  # fmt: skip
    if body.stream:
        return await EventStream.begin(request, _stream(job, body, common))
    return JSONResponse(_whole(await unless_gone(request, job.outputs()), job, body, common))


def _whole(
    outputs: list[Output], job: Job, body: CompletionRequest, common: dict[str, Any]
) -> dict[str, Any]:
    choices, done = [], []
    for index, output in enumerate(outputs):
        assert output.done is not None
        done.append(output.done)
        found = None if body.logprobs is None else text_logprobs(output.logprobs, 0)
        end = reason(output.done)
        choices.append({"index": index, "text": output.text, "logprobs": found, **end})
    answer = {**common, "choices": choices, "usage": usage(done, job.n)}
    return answer | ({"metrics": metrics(done)} if body.include_metrics else {})


async def _stream(
    job: Job, body: CompletionRequest, common: dict[str, Any]
) -> AsyncGenerator[bytes, None]:
    asked = bool(body.stream_options and body.stream_options.include_usage)
    quiet = {"usage": None} if asked else {}
    done: dict[int, Done] = {}
    offsets: dict[int, int] = {}
    async with aclosing(await job.started()) as events:
        # A first event at once: from here on the client knows that its request was accepted.
        yield event({**common, "choices": [_choice(0)], **quiet})
        async for index, news in events:
            if isinstance(news, Done):
                done[index] = news
                yield event({**common, "choices": [_choice(index, **reason(news))], **quiet})
                continue
            found, shown = None, {}
            if news.logprobs:
                found = text_logprobs(news.logprobs, offsets.get(index, 0))
                said = sum(len(text) for text in found["tokens"])
                offsets[index] = offsets.get(index, 0) + said
            if body.include_metrics or news.canvas is not None:
                shown["paradecode"] = progress(news)
            if news.text or found or shown:
                choice = _choice(index, news.text, logprobs=found)
                yield event({**common, "choices": [choice], **quiet, **shown})
    ended = [done[index] for index in sorted(done)]
    if asked or body.include_metrics:
        last: dict[str, Any] = {"choices": [], "usage": usage(ended, job.n)}
        if body.include_metrics:
            last["metrics"] = metrics(ended)
        yield event({**common, **last})
    yield DONE


def _choice(index: int, text: str = "", **details: Any) -> dict[str, Any]:
    empty = {"index": index, "text": text, "logprobs": None, "finish_reason": None}
    return empty | details
