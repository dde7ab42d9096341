"""The web page at `/`: its static files, and the list of methods that the page offers."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response

from paradecode.methods.specs import methods

SCRIPTS = (
    "chat.js", "dom.js", "figures.js", "markdown.js", "settings.js", "stream.js", "transcript.js",
)  # fmt: skip
ASSETS = {
    "index.html": "text/html",
    "page.css": "text/css",
    **dict.fromkeys(SCRIPTS, "text/javascript"),
}
HEADERS = {
    # The page loads its own files, talks to its own server only, and cannot be put into a frame.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


# The routes are coroutines, because a thread for each request would delay the event loop.
@router.head("/")  # Ollama's command asks it whether there is a server.
@router.get("/")
async def index() -> Response:
    """Return the web page."""
    return _file("index.html")


@router.get("/page/methods")
async def listed() -> list[dict[str, str | None]]:
    """Return name, family, guarantee, needed model and summary of each method, for the menu."""
    return [
        {
            "name": method.name,
            "family": method.family,
            "guarantee": method.guarantee,
            "needs": method.models[0] if method.models else None,
            "summary": method.summary,
        }
        for method in sorted(methods().values(), key=lambda method: method.name)
    ]


@router.get("/page/{name}")
async def asset(name: str) -> Response:
    """Return one of the page's own files, or raise 404."""
    if name not in ASSETS:
        raise HTTPException(404, "there is no such file")
    return _file(name)


def _file(name: str) -> Response:
    return Response(_content(name), media_type=ASSETS[name], headers=HEADERS)


@cache
def _content(name: str) -> bytes:
    return (files("paradecode.serve.page") / "assets" / name).read_bytes()
