"""How much work a worker accepts, and when a refused client should try again."""

from __future__ import annotations

from paradecode.engine.engine import Engine
from paradecode.engine.request import GenerationRequest
from paradecode.serve.failures import SHORTEST, busy, stopping
from paradecode.serve.wire import Failure
from paradecode.serve.worker.settings import WorkerSettings

LONGEST = 60.0
RECENT = 0.1
"""Weight of the newest output in the mean service time."""


class Admission:
    """Refuses requests when too many are waiting.

    Attributes:
        draining: whether everything is refused.
        refused: how many requests were.
    """

    def __init__(self, engine: Engine, settings: WorkerSettings) -> None:
        self._engine, self._settings = engine, settings
        self._service = 1.0
        self.draining = False
        self.refused = 0

    def refusal(self, id: str, outputs: list[GenerationRequest]) -> Failure | None:
        """Why the outputs of a request cannot wait here; None if they can."""
        engine, settings = self._engine, self._settings
        tokens = sum(len(output.prompt) for output in outputs)
        held = len(engine.running) + len(engine.queue)
        full = held + len(outputs) > engine.limits.batch + settings.queue_requests
        # An empty queue takes any prompt that the engine can serve at all.
        deep = len(engine.queue) > 0 and engine.queue.tokens + tokens > settings.queue_tokens
        if not (self.draining or full or deep):
            return None
        self.refused += 1
        if self.draining:
            return stopping(id)
        what = "requests" if full else "prompt tokens"
        return busy(id, f"too many {what} are waiting; try again later", self._wait(len(outputs)))

    def served(self, seconds: float) -> None:
        """Tell how long an output took once it was admitted."""
        self._service += RECENT * (seconds - self._service)

    def _wait(self, outputs: int) -> float:
        """Seconds until so many outputs have room, if things go on like this."""
        excess = len(self._engine.queue) + outputs - self._settings.queue_requests
        expected = self._service * max(excess, 1) / self._engine.limits.batch
        return float(round(min(max(expected, SHORTEST), LONGEST)))
