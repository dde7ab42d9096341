"""Decide how much work a worker accepts, and when a refused client should try again."""

from __future__ import annotations

from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.serve.failures import SHORTEST, busy, stopping
from paradecode.serve.wire import Failure
from paradecode.serve.worker.settings import WorkerSettings

LONGEST = 60.0
KEYS = 16
"""The most keys with full queues that a worker can hold."""
RECENT = 0.1
"""Weight of the newest output in the mean service time. A higher weight follows changes faster."""


class Admission:
    """Refuses requests if too many are waiting.

    Attributes:
        draining: whether every request is refused.
        refused: number of refused requests.
    """

    def __init__(self, engine: Engine, settings: WorkerSettings) -> None:
        self._engine, self._settings = engine, settings
        self._service = 1.0
        self.draining = False
        self.refused = 0

    def refusal(
        self, id: str, outputs: list[GenerationRequest], accepted: bool = False
    ) -> Failure | None:
        """Return the failure of a request whose outputs cannot wait here, or None if they can.

        Args:
            accepted: whether another worker, which died, had accepted the request. Such a request
                always has room.
        """
        engine, settings = self._engine, self._settings
        tokens = sum(len(output.prompt) for output in outputs)
        # Each key has a queue of its own, so requests of one key do not lead to refusals for
        # another.
        owner, room = outputs[0].owner, engine.limits.batch + settings.queue_requests
        held = engine.queue.of(owner) + sum(one.request.owner == owner for one in engine.running)
        full = held + len(outputs) > room or len(engine.queue) > KEYS * room
        # If the queue is empty, any prompt is accepted that the engine can serve at all.
        deep = len(engine.queue) > 0 and engine.queue.tokens + tokens > settings.queue_tokens
        if not (self.draining or ((full or deep) and not accepted)):
            return None
        self.refused += 1
        if self.draining:
            return stopping(id)
        what = "requests" if full else "prompt tokens"
        return busy(
            id, f"too many {what} are waiting; try again later", self._wait(owner, len(outputs))
        )

    def served(self, seconds: float) -> None:
        """Record how many seconds an output took after its admission."""
        self._service += RECENT * (seconds - self._service)

    def _wait(self, owner: str, outputs: int) -> float:
        """Estimate the seconds until ``outputs`` more outputs have room.

        Each owner with waiting outputs has an equal share of the batch.
        """
        excess = self._engine.queue.of(owner) + outputs - self._settings.queue_requests
        share = self._engine.limits.batch / max(self._engine.queue.owners, 1)
        expected = self._service * max(excess, 1) / share
        return float(round(min(max(expected, SHORTEST), LONGEST)))
