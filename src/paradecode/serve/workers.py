"""The interface of workers: a pool of processes on this machine, or a fleet of replicas on Ray."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from itertools import count
from typing import NamedTuple

from paradecode.core.errors import ParadecodeError
from paradecode.serve import wire

COME_BACK = 5.0
"""Seconds after which a request that found no worker may be tried again."""

Fate = wire.Accepted | wire.Done | wire.Failure
Observer = Callable[[str, Fate], None]
"""Called with a model's name and the fate of each request, also of a cancelled one."""


Events = AsyncGenerator[wire.OutputEvent, None]


class RequestFailed(ParadecodeError):
    """A request failed before it had a stream of events. ``failure`` is the answer to it."""

    def __init__(self, failure: wire.Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Residence(NamedTuple):
    """Where a model is.

    Attributes:
        status: ``loaded``, ``loading`` or ``unloaded``.
        loads, unloads: how many times the model was loaded and unloaded.
        bytes: bytes of weights and K/V memory that count against the bound on memory; 0 without a
            bound.
    """

    status: str
    loads: int
    unloads: int
    bytes: int


class Workers(ABC):
    """Workers of one or more models.

    Args:
        observe: called with the fate of each request, for metrics; must not raise or block.

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
        """Model -> the workers' message after loading it. The entry stays while they restart."""

    @property
    @abstractmethod
    def healthy(self) -> bool:
        """True if every model has a worker that takes requests."""

    @property
    @abstractmethod
    def restarts(self) -> Mapping[str, int]:
        """Model -> how many times its workers were restarted."""

    @property
    def residence(self) -> Mapping[str, Residence]:
        """Model -> where it is. Models that are always loaded may be left out."""
        return {}

    async def introduce(self, model: str, id: str, key: str, seconds: float) -> None:
        """Load a model that ``ready`` does not have, because it was never loaded.

        Args:
            id: unique id of the request that needs the model.
            key: key of the client.
            seconds: the longest wait.

        Raises:
            RequestFailed: if the model cannot be loaded in time.
        """
        assert model in self.ready, "only a pool loads models on demand"

    @abstractmethod
    def submit(self, model: str, request: wire.Generate) -> Events:
        """Yield the events of a request.

        They are ``Accepted``, chunks, and ``Done`` for each of its outputs. A ``Failure`` may come
        at any point, and is the last event. A request's own mistakes never raise an exception.

        Closing the generator early (use ``contextlib.aclosing``), or cancelling the task that waits
        for it, cancels the request.
        """

    @abstractmethod
    async def stats(self) -> Mapping[str, Sequence[wire.WorkerStats | None]]:
        """Return model -> statistics of each worker, or None for one that does not answer soon."""

    @abstractmethod
    async def blocks(self, model: str, since: Mapping[str, int]) -> Mapping[str, wire.CachedBlocks]:
        """Return worker -> contents of its prefix cache, and its load.

        A restarted worker has a new name.

        Args:
            since: worker -> the last ``next`` that it sent.
        """

    async def tokenize(self, model: str, prompt: wire.PromptInput) -> wire.TokenizedPrompt:
        """Return the token ids of a prompt. Raise RequestFailed if that fails."""
        answer = await self._ask(model, wire.Tokenize(id=self._question(), prompt=prompt))
        assert isinstance(answer, wire.TokenizedPrompt)
        return answer

    async def detokenize(self, model: str, tokens: Sequence[int]) -> wire.DecodedText:
        """Return the text of token ids. Raise RequestFailed if that fails."""
        answer = await self._ask(model, wire.Detokenize(id=self._question(), tokens=list(tokens)))
        assert isinstance(answer, wire.DecodedText)
        return answer

    @abstractmethod
    async def _ask(self, model: str, question: wire.Question) -> wire.Event:
        """Return a worker's answer to a question. Raise RequestFailed if there is none."""

    def _question(self) -> str:
        return f"question-{next(self._questions)}"

    def _failed(self, model: str, failure: wire.Failure) -> wire.Failure:
        self._observe(model, failure)
        return failure
