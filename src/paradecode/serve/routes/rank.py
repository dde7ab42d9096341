"""``POST /v1/rank``, and ``/rerank`` in the form of vLLM, Jina and Cohere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from paradecode.completion import Ranked
from paradecode.serve.documents import posts
from paradecode.serve.outputs import usage
from paradecode.serve.protocol.answers import RankedList, RerankedList
from paradecode.serve.protocol.fields import Common
from paradecode.serve.protocol.rank import RankRequest, RerankRequest
from paradecode.serve.reading import reading
from paradecode.serve.routes.prompts import read
from paradecode.serve.wire import PromptInput

router = APIRouter()


@router.post("/v1/rank", **posts(RankRequest, RankedList))
async def rank(
    request: Request, body: Annotated[RankRequest, Depends(reading(RankRequest))]
) -> Response:
    """Rank candidates that continue a context, the most likely first."""
    common, found = await _ranked(request, body, body.prompt(), body.candidates)
    data = [
        {"index": one.index, "mean": one.mean, "total": one.total, "tokens": len(one.logprobs)}
        | ({"logprobs": one.logprobs} if body.return_logprobs else {})
        for one in found[: body.top_n]
    ]
    return JSONResponse({"object": "list", **common, "data": data})


@router.post("/rerank", **posts(RerankRequest, RerankedList))
@router.post("/v1/rerank", **posts(RerankRequest, RerankedList))
@router.post("/v2/rerank", **posts(RerankRequest, RerankedList))
async def rerank(
    request: Request, body: Annotated[RerankRequest, Depends(reading(RerankRequest))]
) -> Response:
    """Rank documents for a query.

    The score of a document is the geometric mean of the probabilities of its tokens after the
    query.
    """
    texts = body.texts()
    behind = [f"\n{text}" for text in texts]
    common, found = await _ranked(request, body, PromptInput(text=body.query), behind)
    results = [
        {"index": one.index, "relevance_score": math.exp(one.mean)}
        | ({"document": {"text": texts[one.index]}} if body.return_documents is not False else {})
        for one in found[: body.top_n]
    ]
    return JSONResponse({"object": "list", **common, "results": results})


async def _ranked(
    request: Request, body: Common, prompt: PromptInput, candidates: Sequence[str | list[int]]
) -> tuple[dict[str, Any], list[Ranked]]:
    """Return fields that both routes' answers share, and the candidates, the most likely first."""
    name, (output,) = await read(request, body, [prompt], "candidates", candidates=candidates)
    found = [Ranked(index, tuple(values)) for index, values in enumerate(output.ranked)]
    found.sort(key=lambda one: (-one.mean, one.index))
    counted = usage([output.done], 1)["prompt_tokens"] + sum(len(one.logprobs) for one in found)
    counts = {"prompt_tokens": counted, "total_tokens": counted}
    note = request.state.note
    return {"id": f"rank-{note.id}", "model": name, "usage": counts}, found
