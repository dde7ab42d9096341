"""``GET /v1/blocks``: prefix caches and load, for a router that chooses between several servers."""

from __future__ import annotations

import re

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from paradecode.backends.interface import PAGE
from paradecode.serve.documents import gets
from paradecode.serve.errors import ApiError, wrong
from paradecode.serve.generation import model_of
from paradecode.serve.protocol.answers import CacheBlocks

router = APIRouter()
MARK = r"([\w.-]{1,128}):(\d{1,18})"


@router.get("/v1/blocks", **gets(CacheBlocks, 400, 403, 404))
async def blocks(request: Request, model: str | None = None, since: str = "") -> Response:
    """Return what the prefix caches of a model's workers hold, or the changes since an answer."""
    if not request.state.account.limits.operator:
        raise ApiError(403, "this key sees no work of others: make it an operator's in --keys")
    for name in request.query_params.keys() - {"model", "since"}:
        raise wrong(name[:256], "this route knows model and since")
    if since and not re.fullmatch(f"{MARK}(,{MARK}){{0,1023}}", since):
        raise wrong("since", "give what the last answer says, or leave it out")
    known = {name: int(at) for name, at in re.findall(MARK, since)}
    found = await request.app.state.pool.blocks(model_of(request, model).name, known)
    workers = [
        {
            "worker": name, "whole": one.whole, "stored": one.stored, "removed": one.removed,
            "running": one.stats.running, "waiting": one.stats.waiting,
            "waiting_tokens": one.stats.waiting_tokens, "batch": one.stats.batch,
            "blocks": one.stats.pages, "held_blocks": one.stats.held_pages,
        }
        for name, one in found.items()
    ]  # fmt: skip
    next_since = ",".join(f"{name}:{one.next}" for name, one in found.items())
    return JSONResponse({"block_size": PAGE, "since": next_since, "workers": workers})
