"""An OpenAI-compatible server with known behaviour, which runs on a thread of its own.

Each behaviour is an endpoint: ``http://HOST/steady/v1`` answers well, ``http://HOST/cut/v1`` ends
in the middle, and so on.
"""

import asyncio
import json
import threading
from typing import Any

from aiohttp import web

DELAY = 0.02
"""Seconds before the first chunk, and between two chunks."""

TOKENS = 6
PIECES = {"steady": [1] * TOKENS, "bundled": [4, 1, 1], "whole": [TOKENS]}
"""Behaviour -> the number of tokens in each chunk.

Other behaviours have the chunks of ``steady``.
"""

QUICK = ("quick", "brisk", "uncounted", "flaky")
"""Behaviours that answer like ``steady``, but without a delay."""


class FakeServer:
    """The server.

    Attributes:
        url: its address without a path.
        seen: the JSON bodies of all requests.
        wanted: number of requests that must wait at once before any is answered.
    """

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.under_way = self.most_under_way = self.wanted = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.url = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()

    async def _start(self) -> str:
        app = web.Application()
        app.router.add_get("/{behaviour}/v1/models", self._models)
        app.router.add_post("/{behaviour}/v1/chat/completions", self._answer)
        app.router.add_post("/{behaviour}/v1/completions", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _models(self, request: web.Request) -> web.Response:
        behaviour = request.match_info["behaviour"]
        if behaviour == "locked":
            return web.json_response({"error": {"message": "no key"}}, status=401)
        data = [] if behaviour == "empty" else [{"id": f"model-of-{behaviour}"}]
        return web.json_response({"object": "list", "data": data})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body, behaviour = await request.json(), request.match_info["behaviour"]
        self.seen.append({"behaviour": behaviour, **body})
        self.keys.add(request.headers.get("Authorization"))
        if behaviour == "busy" or (behaviour == "flaky" and len(self.seen) % 3 == 0):
            return web.json_response({"error": {"message": "queue full"}}, status=503)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self._stream(response, body, behaviour)
        finally:
            self.under_way -= 1
        return response

    async def _stream(
        self, response: web.StreamResponse, body: dict[str, Any], behaviour: str
    ) -> None:
        async def event(value: Any) -> None:
            await response.write(b"data: " + json.dumps(value).encode() + b"\n\n")

        async def text(piece: str | None, reason: str | None = None) -> None:
            inner = {"delta": {"content": piece}} if "messages" in body else {"text": piece}
            await event({"choices": [{"index": 0, "finish_reason": reason, **inner}]})

        if behaviour == "silent":
            await asyncio.sleep(30)
        while self.most_under_way < self.wanted:
            await asyncio.sleep(DELAY)
        await text("")  # Many servers send the role first, without text.
        for number, tokens in enumerate(PIECES.get(behaviour, PIECES["steady"])):
            await asyncio.sleep(0 if behaviour in QUICK else DELAY)
            await text(" word" * tokens)
            if behaviour == "cut" and number == 2:
                return
            if behaviour == "garbage" and number == 2:
                await response.write(b"data: {not json}\n\n")
            if behaviour == "fails" and number == 2:
                await event({"error": {"message": "worker died", "type": "server_error"}})
                return
        await text(None, "stop")
        options = body.get("stream_options") or {}
        if options.get("include_usage") and behaviour != "uncounted":
            usage = {"prompt_tokens": 5, "completion_tokens": TOKENS, "total_tokens": 5 + TOKENS}
            await event({"choices": [], "usage": usage})
        await response.write(b": a comment\n\ndata: [DONE]\n\n")
