"""The interface of workers: a pool of processes here, or a fleet of replicas on Ray."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from itertools import count

from paradecode.core.errors import ParadecodeError
from paradecode.serve import wire

COME_BACK = 5.0
"""Seconds after which a request that found no worker may be tried again."""

Fate = wire.Accepted | wire.Done | wire.Failure
Observer = Callable[[str, Fate], None]
"""Called with a model's name and the fate of each request, also of a cancelled one."""


Events = AsyncGenerator[wire.OutputEvent, None]


class RequestFailed(ParadecodeError):
    """A request failed before it had a stream of events; ``failure`` says how to answer it."""

    def __init__(self, failure: wire.Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Workers(ABC):
    """Workers of one or more models.

    Args:
        observe: called with requests' fates, for metrics; must not raise or block.

    Attributes:
        draining: whether new requests are refused because the server stops.
    """

    draining: bool = False

    def __init__(self, observe: Observer | None) -> None:
        self._observe = observe or (lambda model, event: None)
        self._questions = count()

    @property
    @abstractmethod
    def ready(self) -> Mapping[str, wire.Ready]:
        """Model -> the workers' message after loading; it stays while they restart."""

    @property
    @abstractmethod
    def healthy(self) -> bool:
        """Whether every model has a worker that takes requests."""

    @property
    @abstractmethod
    def restarts(self) -> Mapping[str, int]:
        """Model -> how often its workers were started again."""

    @abstractmethod
    def submit(self, model: str, request: wire.Generate) -> Events:
        """The events of a request: ``Accepted``, chunks, and ``Done`` for each of its ``n``
        outputs; or at any point a ``Failure``, which is the last event. It never raises for a
        request's fault.

        Closing the generator early (use ``contextlib.aclosing``) or cancelling the task that waits
        for it cancels the request.
        """

    @abstractmethod
    async def stats(self) -> Mapping[str, Sequence[wire.WorkerStats | None]]:
        """Model -> statistics of each worker; None for a worker that does not answer in time."""

    @abstractmethod
    async def blocks(self, model: str, since: Mapping[str, int]) -> Mapping[str, wire.CachedBlocks]:
        """Worker -> contents of its prefix cache, and its load. A worker that was started again has
        a new name.

        Args:
            since: worker -> the last ``next`` that it sent.
        """

    async def tokenize(self, model: str, prompt: wire.PromptInput) -> wire.TokenizedPrompt:
        """Token ids of a prompt. Raises RequestFailed."""
        answer = await self._ask(model, wire.Tokenize(id=self._question(), prompt=prompt))
        assert isinstance(answer, wire.TokenizedPrompt)
        return answer

    async def detokenize(self, model: str, tokens: Sequence[int]) -> wire.DecodedText:
        """Text of token ids. Raises RequestFailed."""
        answer = await self._ask(model, wire.Detokenize(id=self._question(), tokens=list(tokens)))
        assert isinstance(answer, wire.DecodedText)
        return answer

    @abstractmethod
    async def _ask(self, model: str, question: wire.Question) -> wire.Event:
        """The answer to a question. Raises RequestFailed."""

    def _question(self) -> str:
        return f"question-{next(self._questions)}"

    def _failed(self, model: str, failure: wire.Failure) -> wire.Failure:
        self._observe(model, failure)
        return failure
