"""Build the web application: HTTP routes that pass requests to a pool of workers."""

from __future__ import annotations

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, Response

from paradecode import __version__
from paradecode.methods.specs import methods
from paradecode.serve import page
from paradecode.serve.audit import IGNORED, Audit
from paradecode.serve.documents import document
from paradecode.serve.errors import ApiError, answer_api_error, answer_http_error
from paradecode.serve.limits import RATE_HEADERS
from paradecode.serve.log import Log
from paradecode.serve.metrics import Metrics
from paradecode.serve.reading import ArrivingBodies
from paradecode.serve.routes import (
    blocks,
    chat,
    completions,
    embeddings,
    infill,
    messages,
    ollama,
    rank,
    responses,
    status,
    tokens,
)
from paradecode.serve.security import Guard, accounts_of
from paradecode.serve.settings import ServerSettings
from paradecode.serve.spans import Spans
from paradecode.serve.sse import ClientGone
from paradecode.serve.stored import StoredResponses
from paradecode.serve.workers import RequestFailed, Workers


def create_app(settings: ServerSettings, pool: Workers, metrics: Metrics) -> FastAPI:
    """Return the web application, which any ASGI server can run.

    Args:
        pool: a started pool whose observer is ``metrics.observe``. The caller drains and closes it.
    """
    methods()  # Import all methods now, not at the first answer.
    app = FastAPI(
        title="Paradecode", version=__version__, openapi_url=None, docs_url=None, redoc_url=None,
        redirect_slashes=False,  # A redirect would contain the client's Host.
    )  # fmt: skip
    app.state.settings, app.state.pool, app.state.metrics = settings, pool, metrics
    accounts = accounts_of(settings.keys)
    metrics.keys.accounts = accounts.values()
    app.state.bodies, app.state.page = ArrivingBodies(), None
    app.state.stored = StoredResponses(settings.stored_responses)
    for routes in (
        status, blocks, chat, completions, infill, responses, messages, embeddings, rank, tokens,
        ollama, page,
    ):  # fmt: skip
        app.include_router(routes.router)
    described = document(app, bool(settings.keys))

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        return JSONResponse(described)

    app.add_exception_handler(ApiError, answer_api_error)
    app.add_exception_handler(HTTPException, answer_http_error)
    app.add_exception_handler(RequestFailed, _answer_failure)
    app.add_exception_handler(ClientGone, _answer_nobody)
    app.add_middleware(Guard, settings=settings, accounts=accounts)  # The last is the outermost.
    if settings.origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=settings.origins, allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],  # Clients send own ones, such as x-stainless-os.
            expose_headers=[
                "x-request-id", IGNORED, "retry-after", "retry-after-ms", *RATE_HEADERS,
            ],
        )  # fmt: skip
    app.state.log = Log() if settings.log_requests else None
    app.state.spans = Spans.from_environment()
    app.add_middleware(Audit, metrics=metrics, log=app.state.log, spans=app.state.spans)
    return app


async def _answer_failure(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestFailed)
    return await answer_api_error(request, ApiError.of(error.failure))


async def _answer_nobody(request: Request, error: Exception) -> Response:
    return Response(status_code=499)
