"""Generate the outputs of an HTTP request: send it to the pool of workers, and read the answers."""

from __future__ import annotations

import re
import time
from array import array
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from starlette.requests import Request

from paradecode.serve import wire
from paradecode.serve.errors import NAMES, ApiError, wrong
from paradecode.serve.limits import Account
from paradecode.serve.log import Note
from paradecode.serve.merge import merged
from paradecode.serve.protocol.fields import Common
from paradecode.serve.protocol.schemas import closed, enforceable
from paradecode.serve.scores import MAX_SCORES, ScoreColumns
from paradecode.serve.security import tenant
from paradecode.serve.settings import ServerSettings
from paradecode.serve.workers import Events, Workers

CHARACTERS = 4
"""Estimated number of characters in a token."""

LISTED = 20
"""The number of models that the error about an unknown name lists."""

TOOL = re.compile(r"^\$defs/(tool)_(\d+)|^\$defs/answer/")
"""Matches the path of a tool's schema, or of the answer's schema, in the schema of a tool call."""

PROMPTS = ("messages", "input", "prompt")
HELD = {
    "response_format": "response_format.json_schema.schema", "text": "text.format.schema",
    "output_config": "output_config.format.schema", "guided_json": "guided_json",
    "guided_regex": "guided_regex", "guided_choice": "guided_choice",
    "guided_grammar": "guided_grammar", "structured_outputs": "structured_outputs",
    "tools": "tools",
}  # fmt: skip
"""Request fields that may hold a constraint -> the path of the constraint in the request."""

OutputNews = wire.OutputChunk | wire.BranchNews | wire.Done
News = AsyncGenerator[tuple[int, OutputNews], None]
"""Stream of events, each with the index of its output."""


@dataclass
class WholeOutput:
    """One output that has ended, with its text, scores and statistics."""

    text: str = ""
    scores: ScoreColumns = field(default_factory=ScoreColumns)
    embedding: array[float] = field(default_factory=lambda: array("f"))
    ranked: list[list[float]] = field(default_factory=list)
    done: wire.Done = field(default=None)  # type: ignore[assignment]  # Set at its end.


class Model(NamedTuple):
    """A served model: its name, and what its workers reported when they were ready."""

    name: str
    ready: wire.Ready


class Generation:
    """The outputs of one HTTP request: ``n`` for each prompt, indexed in the order of the prompts.

    Attributes:
        copies: how many times the answer repeats the scores of a prompt's tokens.
        thinks: whether the prompt's template opens a block of reasoning, so that outputs begin
            inside it.
        prompt_tokens: number of tokens of the last prompt that a worker has accepted.
    """

    def __init__(self, request: Request, body: Common, n: int = 1) -> None:
        self.pool: Workers = request.app.state.pool
        self.settings: ServerSettings = request.app.state.settings
        self.note: Note = request.state.note
        self.account: Account = request.state.account
        self.body, self.n = body, n
        self.model = model_of(request, body.model)
        self.requests: list[wire.Generate] = []
        self.most, self.copies, self.wide = 0, 1, n
        self.thinks, self.prompt_tokens = False, 0
        self._scores = self._scores_a_token = 0

    def ask(
        self, prompts: Sequence[wire.PromptInput], sampling: dict[str, Any], **wanted: Any
    ) -> None:
        """Set what to generate, and check it against the limits of the server and the model.

        Args:
            prompts: prompts, each of which gets ``n`` outputs.
            sampling: fields of ``SamplingParams``.
            wanted: other fields of :class:`paradecode.serve.wire.Generate`.

        Raises:
            ApiError: 400 if this server or model refuses the request.
        """
        search: wire.SearchSpec | None = wanted.get("search")
        self.wide = self.n if search is None else max(self.n, search.branches)
        if "reads" not in wanted:  # Prompts that are only read run a few at a time.
            self._check_outputs(len(prompts), search is not None)
        most = self.model.ready.context_length
        if sampling.get("max_tokens", 0) > most:
            sampling["max_tokens"] = most
        if "reads" not in wanted:
            self.most = sampling.get("max_tokens", self._default())
            if search is not None:
                self.most = min(self.most, -(-search.tokens // self.wide))
        if wanted.get("reads") == "logprobs":  # Counted when the prompts' lengths are known.
            self._scores_a_token = wanted["top"] + 1
        elif sampling.get("logprobs") is not None and not self.body.stream:
            self._scores_a_token = sampling["logprobs"] + 1
            self._count_scores(len(prompts) * self.n * self.most)
        if not self.model.ready.thoughts:
            self.note.ignored += self.body.about_thoughts
            wanted["thoughts"] = None
        salt, own = self.account.tenant, self.body.cache_salt
        self.account.check_salt(own)
        wanted |= {
            "sampling": sampling,
            "decoder": self._decoder(),
            "salt": salt if own is None else tenant(salt, own),
            "key": salt,
            "priority": self.account.priority(self.body.priority),
            "deadline": self._deadline(),
        }
        constraint = wanted.get("constraint")
        if constraint and constraint.type == "json_schema":
            schema, dropped = enforceable(constraint.value)
            self.note.ignored += [TOOL.sub(_called, place) for place in dropped]
            value = schema if self.settings.open_objects else closed(schema)
            wanted["constraint"] = replace(constraint, value=value)
        self.requests = [
            wire.Generate(id=f"{self.note.id}-{index}", prompt=prompt, **wanted)
            for index, prompt in enumerate(prompts)
        ]

    async def started(self) -> News:
        """Return the stream of events as soon as every prompt has been accepted into a queue.

        Raises:
            ApiError: if a prompt is refused. The returned generator raises it for later failures.
        """
        events = self._events()
        early: list[tuple[int, OutputNews]] = []
        waiting = set(range(len(self.requests)))
        try:
            while waiting:
                number, event = await anext(events)
                if isinstance(event, wire.Accepted):
                    waiting.discard(number)
                else:
                    early.append((number, event))
        except BaseException:
            await events.aclose()
            raise
        return _chained(early, events)

    async def outputs(self) -> list[WholeOutput]:
        """Wait for the last output to end, and return all outputs. Raise ApiError if one fails."""
        found = [WholeOutput() for _ in range(len(self.requests) * self.n)]
        async with aclosing(self._events()) as news:
            async for index, event in news:
                if isinstance(event, wire.Done):
                    found[index].done = event
                elif isinstance(event, wire.OutputChunk):
                    found[index].text += event.text
                    found[index].scores.add(event.logprobs)
                    found[index].embedding.extend(event.embedding or ())
                    found[index].ranked += event.ranked or ()
        return found

    async def _events(self) -> AsyncGenerator[tuple[int, Any], None]:
        """Yield the outputs' events with the output's index, and ``Accepted`` once for each prompt.

        ``Accepted`` comes with the index of its prompt. A failure raises ApiError.
        """
        first, began = self.requests[0], time.monotonic()
        assert first.deadline is not None
        width = self._width()
        staying = self.account.stay(
            [about(request.prompt) for request in self.requests],
            width * self.wide, self.most, first.priority, first.deadline,
        )  # fmt: skip
        async with staying as stay, aclosing(self._submitted(began, width)) as events:
            async for prompt, event in events:
                if isinstance(event, wire.Failure):
                    raise ApiError.of(event, self._names())
                if isinstance(event, wire.Done):
                    if event.finish_reason == "cancelled":
                        raise ApiError(503, "the server ended this request")
                    self.note.done.append(event)
                    self.note.ended.append(time.time_ns())
                    if event.search is not None and event.index == 0:
                        stay.output += event.search.tokens
                if isinstance(event, wire.Accepted):
                    stay.accepted(prompt, event.prompt_tokens)
                    self.thinks, self.prompt_tokens = event.thinks, event.prompt_tokens
                    if self.requests[prompt].reads is not None:
                        self._count_scores(event.prompt_tokens * self.copies)
                    yield prompt, event
                else:
                    generated = self.most and first.search is None  # Otherwise counted already.
                    if isinstance(event, wire.OutputChunk) and generated:
                        stay.output += len(event.tokens)
                    yield prompt * self.n + event.index, event

    def _names(self) -> dict[str, str]:
        """Return the client's names for the fields that a worker may refuse."""
        given = self.body.model_fields_set
        prompt = next((name for name in PROMPTS if name in given), "prompt")
        held = next((name for name in HELD if name in given and getattr(self.body, name)), None)
        return NAMES | {"prompt": prompt} | ({"constraint.value": HELD[held]} if held else {})

    def _count_scores(self, tokens: int) -> None:
        """Raise ApiError if the answer would hold too many scores."""
        self._scores += tokens * self._scores_a_token
        if self._scores > MAX_SCORES:
            what = "prompts, n, their tokens (max_tokens) and top_logprobs + 1"
            fix = f"the product of {what} is {self._scores}, at most {MAX_SCORES}: ask for less"
            raise wrong("logprobs", fix + ("" if self.body.stream else ", or stream"))

    def _check_outputs(self, prompts: int, searches: bool) -> None:
        """Raise ApiError if a request wants more parallel outputs or branches than allowed."""
        most = self.settings.outputs
        if prompts * self.wide > most:
            field = "search" if searches else "n" if self.n > 1 else "prompt"
            raise wrong(field, f"ask for at most {most} {'branches' if searches else 'outputs'}")

    def _width(self) -> int:
        """Return how many requests to send to workers at a time: all, if they generate tokens."""
        if self.requests[0].reads is None:
            return len(self.requests)
        most = self.settings.outputs
        return min(len(self.requests), most, self.account.limits.sequences or most)

    def _submitted(
        self, began: float, width: int
    ) -> AsyncGenerator[tuple[int, wire.OutputEvent], None]:
        """Yield the workers' answers to the requests. At most ``width`` requests run at a time."""
        return merged([self._answered(request, began) for request in self.requests], width)

    async def _answered(self, request: wire.Generate, began: float) -> Events:
        """Yield the events of one request, which is sent with the rest of its deadline."""
        left = max(0.0, self._deadline() - (time.monotonic() - began))
        submitted = self.pool.submit(self.model.name, replace(request, deadline=left))
        async with aclosing(submitted) as events:
            async for event in events:
                yield event

    def _default(self) -> int:
        """Return the most tokens of an output, for a request that sets no limit."""
        (served,) = (one for one in self.settings.models if one.name == self.model.name)
        return min(served.worker.max_tokens, self.model.ready.context_length)

    def _decoder(self) -> str | dict[str, Any] | None:
        """Return the decoding method that the request chooses. The worker checks it."""
        wanted, canvas = self.body.speculative, self.body.diffusion
        if wanted is not None and canvas is not None:
            raise wrong("diffusion", "give it or speculative, not both")
        if canvas is not None:
            if "diffusion" not in self.model.ready.families:
                raise wrong("diffusion", f"{self.model.name} is no diffusion model")
            wanted = {"method": self.model.ready.decoder.partition("(")[0], **canvas}
        if isinstance(wanted, dict):
            if not isinstance(wanted.get("method"), (str, list)):
                raise wrong("speculative.method", "name a method, or 'none'")
            if "model" in wanted:
                fix = "the draft model is chosen where the server is started"
                raise wrong("speculative.model", fix)
        return wanted

    def _deadline(self) -> float:
        asked = [s for s in (self.body.deadline, self.body.timeout) if s is not None]
        most = self.settings.request_seconds
        if asked and max(asked) > most:
            raise wrong("deadline", f"give at most {most:g} seconds")
        return min([*asked, most])


def about(prompt: wire.PromptInput) -> int:
    """Estimate the number of a prompt's tokens from its length. A worker counts them later."""
    if prompt.tokens is not None:
        return len(prompt.tokens)
    said = [message.get("content") for message in prompt.messages or ()]
    texts = [
        prompt.text or "",
        prompt.begun or "",
        *(text for text in said if isinstance(text, str)),
    ]
    return sum(map(len, texts)) // CHARACTERS


def _called(place: re.Match[str]) -> str:
    return f"tools/{place[2]}" if place[1] else ""


async def _chained(early: list[Any], later: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    async with aclosing(later):
        for entry in early:
            yield entry
        async for entry in later:
            yield entry


def model_of(request: Request, name: str | None) -> Model:
    """Return the model that a request names, or the first model.

    Raises:
        ApiError: 404 if there is no such model, or 503 if it was never loaded. Reading a body loads
            the model that the body names.
    """
    settings: ServerSettings = request.app.state.settings
    chosen = settings.name_of(name)
    if chosen is None:
        names = [model.name for model in settings.models]
        listed = ", ".join(names[:LISTED]) + (", ..." if len(names) > LISTED else "")
        message = f"model: there is no such model here; use one of {listed} (see /v1/models)"
        raise ApiError(404, message, param="model", code="model_not_found")
    request.state.note.model = chosen
    ready = request.app.state.pool.ready.get(chosen)
    if ready is None:
        raise ApiError(503, "the model was not loaded yet; its first request loads it")
    return Model(chosen, ready)
