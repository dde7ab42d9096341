"""What the application asks: a pool of processes here, or a fleet of replicas on Ray."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count

from paradecode.core.errors import ParadecodeError
from paradecode.serve.wire import (
    Accepted,
    AskStats,
    Chunk,
    Detokenize,
    Done,
    Failure,
    Generate,
    Prompt,
    Ready,
    Stats,
    Text,
    Tokenize,
    Tokens,
)
from paradecode.serve.wire import Event as WireEvent

ATTEMPTS = 2
"""How often a request is given to a worker, if the first one dies before it sent a token."""

Event = Accepted | Chunk | Done | Failure
Question = Tokenize | Detokenize | AskStats
Observer = Callable[[str, Accepted | Done | Failure], None]
"""Called with a model's name for each request's fate, those that were cancelled included."""


class RequestFailed(ParadecodeError):
    """What ended a request that has no stream of events; ``failure`` says how to answer it."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Workers(ABC):
    """Workers of one or more models.

    Args:
        observe: for metrics; must not raise or block.

    Attributes:
        draining: whether new requests are refused because the server stops.
    """

    draining: bool = False

    def __init__(self, observe: Observer | None) -> None:
        self._observe = observe or (lambda model, event: None)
        self._questions = count()

    @property
    @abstractmethod
    def ready(self) -> Mapping[str, Ready]:
        """What the workers said of each model; it stays listed while they restart."""

    @property
    @abstractmethod
    def healthy(self) -> bool:
        """Whether every model has a worker that takes requests."""

    @property
    @abstractmethod
    def restarts(self) -> Mapping[str, int]:
        """By model, how often a worker was started again."""

    @abstractmethod
    def submit(self, model: str, request: Generate) -> AsyncGenerator[Event, None]:
        """The events of a request: ``Accepted``, ``Chunk``s, and ``Done`` for each of its ``n``
        outputs, or ``Failure`` at any point, always last. It never raises for a request's fault.

        Closing the generator early (use ``contextlib.aclosing``) or cancelling the task that waits
        for it cancels the request.
        """

    @abstractmethod
    async def stats(self) -> Mapping[str, Sequence[Stats | None]]:
        """By model, the stats of each worker; None for one that does not answer in time."""

    async def tokenize(self, model: str, prompt: Prompt) -> Tokens:
        """Token ids of a prompt. Raises RequestFailed."""
        answer = await self._ask(model, Tokenize(id=self._question(), prompt=prompt))
        assert isinstance(answer, Tokens)
        return answer

    async def detokenize(self, model: str, tokens: Sequence[int]) -> Text:
        """Text of token ids. Raises RequestFailed."""
        answer = await self._ask(model, Detokenize(id=self._question(), tokens=list(tokens)))
        assert isinstance(answer, Text)
        return answer

    @abstractmethod
    async def _ask(self, model: str, question: Question) -> WireEvent:
        """The answer to a question. Raises RequestFailed."""

    def _question(self) -> str:
        return f"question-{next(self._questions)}"

    def _failed(self, model: str, failure: Failure) -> Failure:
        self._observe(model, failure)
        return failure


def hastened(request: Generate, began: float) -> Generate:
    """The request with what is left of its deadline, ``began`` being when it came."""
    if request.deadline is None:
        return request
    return replace(request, deadline=max(0.0, request.deadline - (time.monotonic() - began)))
