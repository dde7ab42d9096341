"""Routes for the state of the server: models, health, version and metrics."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from paradecode import __version__
from paradecode.serve.documents import gets
from paradecode.serve.errors import ApiError, wrong
from paradecode.serve.generation import model_of
from paradecode.serve.metrics import CONTENT_TYPE, Metrics
from paradecode.serve.outputs import now
from paradecode.serve.protocol.answers import (
    Health,
    ModelCard,
    ModelList,
    ServerProperties,
    Slot,
    Version,
)  # fmt: skip
from paradecode.serve.wire import Ready
from paradecode.serve.workers import Workers

router = APIRouter()
STARTED = now()


@router.get("/v1/models", **gets(ModelList))
async def models(request: Request) -> Response:
    """List the models that requests may name."""
    ready = request.app.state.pool.ready
    return JSONResponse({"object": "list", "data": [_card(*entry) for entry in ready.items()]})


@router.get("/v1/models/{name:path}", **gets(ModelCard, 404))
async def model(request: Request, name: str) -> Response:
    """Describe one model."""
    return JSONResponse(_card(*model_of(request, name)))


@router.head("/health", include_in_schema=False)
@router.get("/health", **gets(Health, 503))
async def health(request: Request) -> Response:
    """Answer 200 while every model has a worker that takes requests, else 503."""
    pool = request.app.state.pool
    if pool.draining or not pool.healthy:
        raise ApiError(503, "the server is stopping" if pool.draining else "a model is not loaded")
    return JSONResponse({"status": "ok"})


@router.get("/version", **gets(Version))
async def version() -> Response:
    return JSONResponse({"version": __version__})


@router.get("/props", **gets(ServerProperties, 400, 404))
async def props(request: Request, model: str | None = None) -> Response:
    """Return llama.cpp's properties of a server, without paths and texts."""
    _check_query(request)
    found = model_of(request, model)
    context = {"n_ctx": found.ready.context_length}
    slots = len(_batch(request, found.name))
    said = {"model_alias": found.name, "total_slots": slots, "build_info": __version__}
    return JSONResponse({**said, "default_generation_settings": context})


@router.get("/slots", **gets(list[Slot], 400, 403, 404))
async def slots(request: Request, model: str | None = None) -> Response:
    """Return llama.cpp's list of outputs that are decoded together: whether each has work."""
    _check_query(request)
    if not request.state.account.limits.operator:
        raise ApiError(403, "this key sees no work of others: make it an operator's in --keys")
    found, pool = model_of(request, model), request.app.state.pool
    stats = (await pool.stats()).get(found.name, [])
    busy = sum(worker.running for worker in stats)
    size = found.ready.context_length
    return JSONResponse(
        [
            {"id": number, "n_ctx": size, "is_processing": number < busy}
            for number in _batch(request, found.name)
        ]
    )


def _check_query(request: Request) -> None:
    for name in request.query_params.keys() - {"model"}:
        raise wrong(name[:256], "this route knows model")


def _batch(request: Request, name: str) -> range:
    """Return the numbers of the outputs that all workers of a model can decode at the same time."""
    (served,) = (one for one in request.app.state.settings.models if one.name == name)
    return range(served.replicas * served.worker.engine_limits().batch)


@router.get("/metrics", **gets(None))
async def metrics(request: Request) -> Response:
    """Return counters for Prometheus: all for an operator's key, else those of the key."""
    state, account = request.app.state, request.state.account
    if not account.limits.operator:
        return Response(state.metrics.page_of(account), media_type=CONTENT_TYPE)
    if state.page is None or state.page.done():  # Simultaneous requests share a page.
        state.page = asyncio.ensure_future(_page(state.pool, state.metrics))
    page = await asyncio.shield(state.page)
    return Response(page, media_type=CONTENT_TYPE)


async def _page(pool: Workers, counted: Metrics) -> bytes:
    return counted.page(await pool.stats(), pool.restarts)


def _card(name: str, ready: Ready) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": STARTED,
        "owned_by": "paradecode",
        "max_model_len": ready.context_length,
        "families": ready.families,
        "decoder": ready.decoder,
        "draft_model": ready.draft_model is not None,
        "chat": ready.chat,
    }
