"""From a request's fields to its outputs: ask the pool, and follow what it answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from paradecode.serve import wire
from paradecode.serve.audit import Note
from paradecode.serve.errors import ApiError
from paradecode.serve.protocol.fields import Common
from paradecode.serve.security import tenant
from paradecode.serve.settings import ServerSettings
from paradecode.serve.workers import Workers

Follow = AsyncGenerator[tuple[int, wire.OutputChunk | wire.Done], None]
"""What becomes of the outputs, each with its number."""


@dataclass
class Output:
    """One output, when it has ended."""

    text: str = ""
    logprobs: list[wire.TokenLogprobs] = field(default_factory=list)
    done: wire.Done | None = None


@dataclass(frozen=True)
class Model:
    """A served model."""

    name: str
    ready: wire.Ready


class Job:
    """The outputs of one HTTP request: those of each prompt, ``n`` of each, numbered in order."""

    def __init__(self, request: Request, body: Common, n: int = 1) -> None:
        self.pool: Workers = request.app.state.pool
        self.settings: ServerSettings = request.app.state.settings
        self.note: Note = request.state.note
        self.salt = _salt(request, body)
        self.body, self.n = body, n
        self.model = model_of(request, body.model)
        self.requests: list[wire.Generate] = []

    def ask(
        self,
        prompts: Sequence[wire.PromptInput],
        sampling: dict[str, Any],
        constraint: wire.ConstraintSpec | None = None,
        prediction: str | None = None,
        provisional: bool = False,
    ) -> None:
        """Say what is wanted; raises ApiError 400 for what this server or model refuses."""
        if len(prompts) * self.n > self.settings.outputs:
            raise ApiError(400, f"n: ask for at most {self.settings.outputs} outputs", param="n")
        most = self.model.ready.context_length
        if sampling.get("max_tokens", 0) > most:
            raise ApiError(
                400, f"max_tokens: the model's context has {most} tokens", param="max_tokens"
            )
        decoder, deadline = self._decoder(), self._deadline()
        for index, prompt in enumerate(prompts):
            self.requests.append(
                wire.Generate(
                    id=f"{self.note.id}-{index}", prompt=prompt, sampling=sampling,
                    decoder=decoder, prediction=prediction, salt=self.salt,
                    priority=self.body.priority or 0, deadline=deadline, constraint=constraint,
                    provisional=provisional,
                )
            )  # fmt: skip
        self.note.model = self.model.name

    async def started(self) -> Follow:
        """What becomes of the outputs, once every prompt is in a queue.

        Raises:
            ApiError: if a prompt is refused; the generator raises it for later failures.
        """
        events = self._events()
        early: list[tuple[int, Any]] = []
        waiting = set(range(len(self.requests)))
        try:
            while waiting:
                which, event = await events.__anext__()
                if isinstance(event, wire.Failure):
                    raise ApiError.of(event)
                if isinstance(event, wire.Accepted):
                    waiting.discard(which)
                else:
                    early.append((which, event))
        except BaseException:
            await events.aclose()
            raise
        return self._followed(early, events)

    async def outputs(self) -> list[Output]:
        """All outputs, when the last has ended; raises ApiError if one fails."""
        found = [Output() for _ in range(len(self.requests) * self.n)]
        async with aclosing(await self.started()) as events:
            async for index, event in events:
                if isinstance(event, wire.Done):
                    found[index].done = event
                else:
                    found[index].text += event.text
                    found[index].logprobs += event.logprobs or ()
        return found

    async def _followed(
        self, early: list[tuple[int, Any]], events: AsyncGenerator[tuple[int, Any], None]
    ) -> Follow:
        async with aclosing(events):
            for which, event in early:
                yield self._checked(which, event)
            async for which, event in events:
                if not isinstance(event, wire.Accepted):
                    yield self._checked(which, event)

    def _checked(self, which: int, event: Any) -> tuple[int, wire.OutputChunk | wire.Done]:
        if isinstance(event, wire.Failure):
            raise ApiError.of(event)
        if isinstance(event, wire.Done):
            if event.finish_reason == "cancelled":
                raise ApiError(503, "the server ended this request")
            self.note.done.append(event)
        return which * self.n + event.index, event

    async def _events(self) -> AsyncGenerator[tuple[int, Any], None]:
        if len(self.requests) == 1:
            async with aclosing(self.pool.submit(self.model.name, self.requests[0])) as events:
                async for event in events:
                    yield 0, event
            return
        queue: asyncio.Queue[tuple[int, Any]] = asyncio.Queue(256)
        tasks = [
            asyncio.ensure_future(self._pump(index, request, queue))
            for index, request in enumerate(self.requests)
        ]
        try:
            left = len(tasks)
            while left:
                which, event = await queue.get()
                if isinstance(event, BaseException):
                    raise event
                if event is None:
                    left -= 1
                else:
                    yield which, event
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _pump(
        self, which: int, request: wire.Generate, queue: asyncio.Queue[tuple[int, Any]]
    ) -> None:
        end: BaseException | None = None
        try:
            async with aclosing(self.pool.submit(self.model.name, request)) as events:
                async for event in events:
                    await queue.put((which, event))
        except Exception as error:
            end = error
        await queue.put((which, end))

    def _decoder(self) -> str | dict[str, Any] | None:
        """The method that the request chooses; the worker checks it."""
        wanted, canvas = self.body.speculative, self.body.diffusion
        if wanted is not None and canvas is not None:
            raise ApiError(400, "diffusion: give it or speculative, not both", param="diffusion")
        if canvas is not None:
            if "diffusion" not in self.model.ready.families:
                raise ApiError(
                    400, f"diffusion: {self.model.name} is no diffusion model", param="diffusion"
                )
            wanted = {"method": self.model.ready.decoder.partition("(")[0], **canvas}
        if isinstance(wanted, dict):
            method = wanted.get("method")
            if not isinstance(method, (str, list)):
                raise ApiError(
                    400, "speculative.method: name a method, or 'none'", param="speculative.method"
                )
            if "model" in wanted:
                fix = "the draft model is chosen where the server is started"
                raise ApiError(400, f"speculative.model: {fix}", param="speculative.model")
        return wanted

    def _deadline(self) -> float:
        asked = [s for s in (self.body.deadline, self.body.timeout) if s is not None]
        most = self.settings.request_seconds
        if asked and max(asked) > most:
            raise ApiError(400, f"deadline: give at most {most:g} seconds", param="deadline")
        return min([*asked, most])


def model_of(request: Request, name: str | None) -> Model:
    """The model that a request names, or the first; raises ApiError 404."""
    ready = request.app.state.pool.ready
    settings: ServerSettings = request.app.state.settings
    chosen = settings.models[0].name if name is None else name
    if chosen not in ready:
        raise ApiError(
            404, "model: there is no such model here; see /v1/models",
            param="model", code="model_not_found",
        )  # fmt: skip
    return Model(chosen, ready[chosen])


def _salt(request: Request, body: Common) -> str:
    own: str = request.state.tenant
    return own if body.cache_salt is None else tenant(own, body.cache_salt)
