"""A server in a thread of its own, over a fake pool that a test controls, or over a real one."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")


from paradecode.core.trace import Stats
from paradecode.serve.keys import plain_keys
from paradecode.serve.metrics import Metrics
from paradecode.serve.pool import Pool, Served
from paradecode.serve.server import LobbyServer, bind, configured
from paradecode.serve.settings import ServerSettings
from paradecode.serve.wire import (
    Accepted,
    DecodedText,
    Done,
    Failure,
    Generate,
    OutputChunk,
    OutputEvent,
    Ready,
    TokenizedPrompt,
    WireCommit,
    WireScores,
    WorkerStats,
)
from paradecode.serve.worker.settings import WorkerSettings
from paradecode.serve.workers import Residence
from patience import PATIENCE

JSON = {"content-type": "application/json"}
USER = [{"role": "user", "content": "Hi"}]


def ready(name: str, family: str = "autoregressive", tools: bool = False) -> Ready:
    decoder = "threshold" if family == "diffusion" else "prompt-lookup"
    return Ready(
        model=name, families=[family], context_length=512, vocab_size=96, decoder=decoder,
        draft_model=None, chat=True, tools=tools,
    )  # fmt: skip


def done(id: str, index: int = 0, reason: Any = "stop", tokens: int = 4) -> Done:
    stats = Stats(
        forwards=2, rows=9, generated=tokens, drafts=1, drafted=3, accepted=2,
        accepted_per_position=(1, 1), prompt_tokens=7, cached_tokens=3,
        queue_seconds=0.1, prefill_seconds=0.2, decode_seconds=0.3,
    )  # fmt: skip
    return Done(
        id=id, index=index, finish_reason=reason, method="prompt-lookup(max_ngram=2)",
        stats=stats, predicted=True, time_to_first_token=0.3,
    )  # fmt: skip


@dataclass
class FakePool:
    """A pool that answers every request with ``texts``, one in each chunk.

    It waits ``pause`` seconds before each chunk.

    Attributes:
        failure: failure that ends a request after ``fails_after`` events; with 0 events it is not
            accepted.
        endless: whether the texts are repeated for ever.
        prompt_tokens: reported number of tokens of a prompt.
        seen: the requests that the pool got, in order.
        left: ids of requests that were closed before their end.
    """

    texts: list[str] = field(default_factory=lambda: ["Hel", "lo"])
    reason: str = "stop"
    stopped: str | None = None
    pause: float = 0.0
    failure: Failure | None = None
    fails_after: int = 0
    endless: bool = False
    thinks: bool = False
    crash: bool = False
    healthy: bool = True
    draining: bool = False
    logprobs: WireScores | None = None
    canvas: list[str | None] | None = None
    prompt_tokens: int = 2
    seen: list[Generate] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    restarts: dict[str, int] = field(default_factory=dict)
    residence: dict[str, Residence] = field(default_factory=dict)
    ready: dict[str, Ready] = field(
        default_factory=lambda: {
            "tiny": ready("tiny"),
            "canvas": ready("canvas", "diffusion"),
            "caller": ready("caller", tools=True),
        }
    )

    def reset(self) -> None:
        """Restore the initial state, for the next test on the same server."""
        vars(self).update(vars(FakePool()))

    async def submit(self, model: str, request: Generate) -> AsyncGenerator[OutputEvent, None]:
        self.seen.append(request)
        if self.crash:
            raise RuntimeError("a secret of the server: " + str(request.prompt))
        ended = False
        try:
            count = 0
            async for event in self._events(request):
                if self.failure is not None and count == self.fails_after:
                    ended = True
                    yield replace(self.failure, id=request.id)
                    return
                count += 1
                yield event
            ended = True
        finally:
            if not ended:
                self.left.append(request.id)

    async def _events(self, request: Generate) -> AsyncGenerator[OutputEvent, None]:
        if request.reads is not None:
            for event in _read(request, self.prompt_tokens):
                yield event
            return
        outputs = range(request.sampling.get("n", 1))
        yield Accepted(id=request.id, prompt_tokens=7, thinks=self.thinks)
        forward = 0
        while True:
            for text in self.texts:
                await asyncio.sleep(self.pause)
                forward += 1
                for index in outputs:
                    yield OutputChunk(
                        id=request.id, index=index, text=text, tokens=[5, 6], forward=forward,
                        logprobs=self.logprobs, canvas=self.canvas if request.provisional else None,
                        commits=[WireCommit(forward, 2, len(text))],
                    )  # fmt: skip
            if not self.endless:
                break
        for index in outputs:
            yield replace(done(request.id, index, self.reason), stopped=self.stopped)

    async def tokenize(self, model: str, prompt: Any) -> TokenizedPrompt:
        return TokenizedPrompt(id="t", tokens=[1, 2], texts=["a", "b"])

    async def detokenize(self, model: str, tokens: Sequence[int]) -> DecodedText:
        return DecodedText(id="t", text="ab")

    async def blocks(self, model: str, since: Any) -> dict[str, Any]:
        return {}

    async def stats(self) -> dict[str, list[WorkerStats]]:
        return {}


def _read(request: Generate, tokens: int) -> list[OutputEvent]:
    """Return events for a read prompt "ab": two tokens, the second with one candidate."""
    top = request.top > 0
    scored = WireScores(
        sizes=[1, 1 + top], tokens=[97, 98, 99][: 2 + top], logprobs=[0.0, -0.5, -0.25][: 2 + top],
        spelled=["a", "b", "c"][: 2 + top],
    )  # fmt: skip
    hidden = request.reads == "embedding"
    chunk = OutputChunk(
        id=request.id, index=0, text="", tokens=[97, 98], forward=0,
        logprobs=None if hidden else scored, embedding=[3.0, 4.0] if hidden else None,
    )  # fmt: skip
    ended = done(request.id, 0, "length", tokens=0)
    return [Accepted(id=request.id, prompt_tokens=tokens), chunk, ended]


def settings(**changes: Any) -> ServerSettings:
    names = changes.pop("names", ("tiny", "canvas", "caller"))
    models = tuple(Served(name, WorkerSettings()) for name in names)
    if keys := changes.get("keys"):
        changes["keys"] = plain_keys(keys) if isinstance(keys[0], str) else keys
    return ServerSettings(models=models, **{"port": 0, "log_requests": False, **changes})


@dataclass
class Running:
    """A server that listens. ``client`` raises for no status, and ``pool`` may be a FakePool."""

    url: str
    port: int
    client: httpx.Client
    pool: Any
    loop: asyncio.AbstractEventLoop

    def post(self, path: str, body: Any, **kwargs: Any) -> httpx.Response:
        return self.client.post(path, json=body, **kwargs)

    def chat(self, **body: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", {"messages": USER, **body})

    def complete(self, **body: Any) -> httpx.Response:
        return self.post("/v1/completions", {"prompt": "a", **body})


@contextmanager
def running(chosen: ServerSettings, pool: Any = None) -> Iterator[Running]:
    """Run a server over ``pool``, or over workers of its own for ``chosen.models``."""
    started, stop = threading.Event(), threading.Event()
    found: dict[str, Any] = {}

    async def main() -> None:
        metrics = Metrics([model.name for model in chosen.models])
        used = pool
        if used is None:
            used = Pool(
                chosen.models, metrics.observe, hang_seconds=chosen.hang_seconds,
                on_demand=chosen.on_demand,
            )  # fmt: skip
            await used.start()
        try:
            config = configured(chosen, used, metrics)
            server = LobbyServer(config)
            listener = bind(chosen)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            while not server.started:
                await asyncio.sleep(0.005)
            found["port"] = listener.getsockname()[1]
            found["loop"], found["pool"] = asyncio.get_running_loop(), used
            started.set()
            while not stop.is_set():
                await asyncio.sleep(0.02)
            server.should_exit = server.force_exit = True
            await serving
            if (log := config.app.state.log) is not None:
                log.close()
        finally:
            if pool is None:
                await used.close()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            found["error"] = error
        finally:
            started.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert started.wait(300), "the server did not start"
    if "error" in found:
        raise found["error"]
    url = f"http://127.0.0.1:{found['port']}"
    headers = {"authorization": f"Bearer {chosen.keys[0].key}"} if chosen.keys else {}
    client = httpx.Client(base_url=url, timeout=60, headers=headers)
    try:
        with client:
            yield Running(url, found["port"], client, found["pool"], found["loop"])
    finally:
        stop.set()
        thread.join(30)


def events(response: httpx.Response) -> list[str]:
    """Return the data of each server-sent event."""
    found = []
    for block in response.text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("data: ")]
        found += [line.removeprefix("data: ") for line in lines]
    return found


def raw(server: Running, *sent: bytes) -> bytes:
    """Send bytes, and return everything that comes back until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        for piece in sent:
            connection.sendall(piece)
        answer = b""
        with suppress(ConnectionError):
            while piece := connection.recv(65536):
                answer += piece
        return answer
