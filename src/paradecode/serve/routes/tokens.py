"""``POST /tokenize`` and ``/detokenize`` in vLLM's form, and llama.cpp's ``/apply-template``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from paradecode.serve.documents import posts
from paradecode.serve.generation import model_of
from paradecode.serve.protocol.answers import Detokenized, Templated, Tokenized
from paradecode.serve.protocol.chat import to_wire
from paradecode.serve.protocol.completions import (
    DetokenizeRequest,
    TemplateRequest,
    TokenizeRequest,
)  # fmt: skip
from paradecode.serve.reading import reading
from paradecode.serve.sse import unless_gone
from paradecode.serve.wire import PromptInput

router = APIRouter()


@router.post("/tokenize", **posts(TokenizeRequest, Tokenized))
async def tokenize(
    request: Request, body: Annotated[TokenizeRequest, Depends(reading(TokenizeRequest))]
) -> Response:
    """Return the token ids of a plain text, or of a conversation in the model's format."""
    model = model_of(request, body.model)
    if body.messages is None:
        prompt = PromptInput(text=body.prompt)
    else:
        prompt = PromptInput(messages=to_wire(body.messages, model.ready.tools))
    found = await unless_gone(request, request.app.state.pool.tokenize(model.name, prompt))
    answer = {
        "count": len(found.tokens),
        "max_model_len": model.ready.context_length,
        "tokens": found.tokens,
    }
    return JSONResponse(answer | ({"token_strs": found.texts} if body.return_token_strs else {}))


@router.post("/detokenize", **posts(DetokenizeRequest, Detokenized))
async def detokenize(
    request: Request, body: Annotated[DetokenizeRequest, Depends(reading(DetokenizeRequest))]
) -> Response:
    """Return the text of token ids."""
    model = model_of(request, body.model)
    pool = request.app.state.pool
    found = await unless_gone(request, pool.detokenize(model.name, body.tokens))
    return JSONResponse({"prompt": found.text, "content": found.text})  # llama.cpp's name.


@router.post("/apply-template", **posts(TemplateRequest, Templated))
async def apply_template(
    request: Request, body: Annotated[TemplateRequest, Depends(reading(TemplateRequest))]
) -> Response:
    """Return the text that the model reads of a conversation."""
    model, pool = model_of(request, body.model), request.app.state.pool
    prompt = PromptInput(messages=to_wire(body.messages, model.ready.tools))
    read = await unless_gone(request, pool.tokenize(model.name, prompt))
    found = await unless_gone(request, pool.detokenize(model.name, read.tokens))
    return JSONResponse({"prompt": found.text})
