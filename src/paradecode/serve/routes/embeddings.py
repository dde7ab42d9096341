"""``POST /v1/embeddings``: the mean of a text's last hidden states, scaled to length 1."""

from __future__ import annotations

import base64
from array import array
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from paradecode.serve.documents import posts
from paradecode.serve.outputs import usage
from paradecode.serve.protocol.answers import EmbeddingList
from paradecode.serve.protocol.embeddings import EmbeddingsRequest
from paradecode.serve.reading import reading
from paradecode.serve.routes.prompts import read
from paradecode.serve.whole import whole

router = APIRouter()


@router.post("/v1/embeddings", **posts(EmbeddingsRequest, EmbeddingList))
async def embed(
    request: Request, body: Annotated[EmbeddingsRequest, Depends(reading(EmbeddingsRequest))]
) -> Response:
    """Return an embedding vector for each text or list of token ids."""
    name, outputs = await read(request, body, body.prompts(), "embedding")
    data = (  # A generator, because all vectors as lists would be large.
        {"object": "embedding", "index": index, "embedding": _spelled(output.embedding, body)}
        for index, output in enumerate(outputs)
    )
    spent = usage([output.done for output in outputs], 1)
    counts = {name: spent[name] for name in ("prompt_tokens", "total_tokens")}
    return whole({"object": "list", "data": data, "model": name, "usage": counts})


def _spelled(mean: array[float], body: EmbeddingsRequest) -> Any:
    vector = np.array(mean, np.float32)
    vector /= max(float(np.linalg.norm(vector)), 1e-12)
    if body.encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
