"""Ollama's routes below ``/api``: models, chats and texts, in the form that its clients read."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime, timezone
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from paradecode.serve.documents import gets, posts
from paradecode.serve.errors import ApiError
from paradecode.serve.generation import Generation, Model, WholeOutput, model_of
from paradecode.serve.outputs import STARTED
from paradecode.serve.protocol.answers import (
    OllamaAnswer,
    OllamaError,
    OllamaList,
    OllamaShown,
    Version,
)
from paradecode.serve.protocol.chat import ChatRequest
from paradecode.serve.protocol.completions import CompletionRequest
from paradecode.serve.protocol.ollama import (
    OllamaChat,
    OllamaGenerate,
    OllamaModel,
    OllamaRequest,
)
from paradecode.serve.reading import apart, reading
from paradecode.serve.routes.reply import RouteReply
from paradecode.serve.sse import JsonLines, line
from paradecode.serve.tool_calls import CallReader, Delta, message
from paradecode.serve.wire import Done

router = APIRouter(prefix="/api")
VERSION = "0.12.0"
"""Version of Ollama whose routes these follow. Its clients ask for a recent one."""
LINES = "application/x-ndjson"


@router.get("/version", **gets(Version, errors=OllamaError))
async def version() -> Response:
    return JSONResponse({"version": VERSION})


@router.get("/tags", **gets(OllamaList, errors=OllamaError))
async def tags(request: Request) -> Response:
    """List the models."""
    return JSONResponse({"models": [_listed(model) for model in _models(request)]})


@router.get("/ps", **gets(OllamaList, errors=OllamaError))
async def running(request: Request) -> Response:
    """List the models that are loaded, which all of them are."""
    never = {"expires_at": "2999-12-31T23:59:59Z", "size_vram": 0}
    return JSONResponse(
        {
            "models": [
                {**_listed(model), **never, "context_length": model.ready.context_length}
                for model in _models(request)
            ]
        }
    )


@router.post("/show", **posts(OllamaModel, OllamaShown, errors=OllamaError))
async def show(
    request: Request, body: Annotated[OllamaModel, Depends(reading(OllamaModel))]
) -> Response:
    """Describe a model."""
    model = model_of(request, body.name)
    ready, family = model.ready, _details(model)["family"]
    able = {
        "completion": True, "tools": ready.chat, "insert": bool(ready.fim),
        "thinking": ready.thoughts,
    }  # fmt: skip
    about = {"general.architecture": family, f"{family}.context_length": ready.context_length}
    said = {"details": _details(model), "model_info": about, "modified_at": _time(STARTED)}
    texts = dict.fromkeys(("modelfile", "parameters", "template", "license"), "")
    return JSONResponse({**texts, **said, "capabilities": [name for name in able if able[name]]})


@router.post("/chat", **posts(OllamaChat, OllamaAnswer, streams=LINES, errors=OllamaError))
async def chat(
    request: Request, body: Annotated[OllamaChat, Depends(reading(OllamaChat))]
) -> Response:
    """Answer a conversation."""
    return await _answer(request, body, await apart(request, body.asked))


@router.post("/generate", **posts(OllamaGenerate, OllamaAnswer, streams=LINES, errors=OllamaError))
async def generate(
    request: Request, body: Annotated[OllamaGenerate, Depends(reading(OllamaGenerate))]
) -> Response:
    """Answer one message, or continue a text."""
    return await _answer(request, body, await apart(request, body.asked))


@router.post("/embed", include_in_schema=False)
@router.post("/embeddings", include_in_schema=False)
async def embed() -> Response:
    raise ApiError(400, "this route is not supported: use /v1/embeddings", code="unsupported")


async def _answer(
    request: Request, body: OllamaRequest, asked: ChatRequest | CompletionRequest | None
) -> Response:
    in_chat = isinstance(body, OllamaChat)
    if asked is None:  # A client wants the model to be loaded.
        named = model_of(request, body.name)
        loaded = _part(named.name, in_chat, "") | {"done": True, "done_reason": "load"}
        return JSONResponse(loaded)
    job = Generation(request, asked)
    reply = await apart(request, lambda: _OllamaReply(job, asked, in_chat))
    return await reply.response(request)


class _OllamaReply(RouteReply):
    streams = JsonLines

    def __init__(
        self, job: Generation, body: ChatRequest | CompletionRequest, in_chat: bool
    ) -> None:
        super().__init__(job)
        self.in_chat = in_chat
        if isinstance(body, ChatRequest):
            prompt = body.prompt(job.model.ready.tools)
            self.calls = body.calls(lambda: job.thinks)
        else:
            (prompt,) = body.prompts(job.model.ready.fim)
            self.calls = CallReader(())
        job.ask([prompt], body.sampling(), constraint=body.constraint(), thoughts=body.thoughts)

    def whole(self, outputs: list[WholeOutput]) -> dict[str, Any]:
        (output,) = outputs
        said = message([*self.calls.feed(output.text), *self.calls.finish()])
        thoughts, calls = said.get("reasoning_content", ""), said.get("tool_calls", [])
        part = self._part(said["content"] or "", thoughts, calls)
        return part | _ended(output.done)

    async def stream(self) -> AsyncGenerator[bytes, None]:
        called: list[Delta] = []
        async with aclosing(await self.job.started()) as events:
            async for _, news in events:
                if isinstance(news, Done):
                    deltas, done = self.calls.finish(), news
                else:
                    deltas = self.calls.feed(news.text)
                called += [delta for delta in deltas if "tool_calls" in delta]
                for delta in deltas:
                    text, thought = delta.get("content", ""), delta.get("reasoning_content", "")
                    if text or thought:
                        yield line({**self._part(text, thought), "done": False})
        if called:  # Clients want whole calls.
            yield line({**self._part("", "", message(called)["tool_calls"]), "done": False})
        yield line(self._part("") | _ended(done))

    def _part(
        self, text: str, thoughts: str = "", calls: list[dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        return _part(self.job.model.name, self.in_chat, text, thoughts, calls)


def _part(
    model: str,
    in_chat: bool,
    text: str,
    thoughts: str = "",
    calls: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return an answer, or a piece of one, without its end."""
    head = {"model": model, "created_at": _time(datetime.now(timezone.utc).timestamp())}
    more: dict[str, Any] = {"thinking": thoughts} if thoughts else {}
    if not in_chat:
        return {**head, "response": text, **more}
    if calls:
        more["tool_calls"] = [_call(call) for call in calls]
    return {**head, "message": {"role": "assistant", "content": text, **more}}


def _call(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call. Its arguments are an object, also if the model wrote something else."""
    if call["type"] == "custom":
        return {
            "function": {
                "name": call["custom"]["name"],
                "arguments": {"input": call["custom"]["input"]},
            }
        }
    written = call["function"]["arguments"]
    try:
        given = json.loads(written or "{}")
    except (ValueError, RecursionError):
        given = None
    shown = given if isinstance(given, dict) else {"invalid": written}
    return {"function": {"name": call["function"]["name"], "arguments": shown}}


def _ended(done: Done) -> dict[str, Any]:
    stats = done.stats
    seconds = (stats.queue_seconds, stats.prefill_seconds, stats.decode_seconds)
    queue, prompt, decode = (round(each * 1e9) for each in seconds)
    return {
        "done": True, "done_reason": "stop" if done.finish_reason == "stop" else "length",
        "total_duration": queue + prompt + decode, "load_duration": 0,
        "prompt_eval_count": stats.prompt_tokens, "prompt_eval_duration": prompt,
        "eval_count": stats.generated, "eval_duration": decode,
    }  # fmt: skip


def _models(request: Request) -> list[Model]:
    return [Model(*entry) for entry in request.app.state.pool.ready.items()]


def _listed(model: Model) -> dict[str, Any]:
    """Return a model's entry in a list. Its digest is that of its name, as files are not told."""
    digest = hashlib.sha256(model.name.encode()).hexdigest()
    return {
        "name": model.name, "model": model.name, "modified_at": _time(STARTED), "size": 0,
        "digest": digest, "details": _details(model),
    }  # fmt: skip


def _details(model: Model) -> dict[str, Any]:
    family = model.ready.families[0]
    empty = dict.fromkeys(("parent_model", "format", "parameter_size", "quantization_level"), "")
    return {**empty, "family": family, "families": [family]}


def _time(seconds: float) -> str:
    told = datetime.fromtimestamp(seconds, timezone.utc)
    return told.isoformat(timespec="microseconds").replace("+00:00", "Z")
