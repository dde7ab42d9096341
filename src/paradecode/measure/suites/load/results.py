"""What was measured, request by request, and its JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paradecode.measure.machine import Machine
from paradecode.measure.result_files import rounded
from paradecode.measure.suites.load.plan import OfferedLoad

SCHEMA = "paradecode-load/1"


@dataclass
class StreamedAnswer:
    """One request. Times are seconds; those of an open loop count from when it was due.

    Attributes:
        ask: id of what was asked.
        start: when it was sent (closed loop) or due (open loop), from the start of the round.
        late: how much later than due it was sent: the client's own delay.
        first, last: to the first and to the last text; None without text.
        end: to the end of the answer.
        chunks: pieces of text that arrived.
        longest_gap: between two of them.
        tokens: of the output; None where the request failed.
        finish_reason: as the server says.
        error: empty, or what went wrong, as ``kind: detail``.
        text: the output; not written to files.
    """

    ask: str
    start: float
    late: float = 0.0
    first: float | None = None
    last: float | None = None
    end: float = 0.0
    chunks: int = 0
    longest_gap: float = 0.0
    tokens: int | None = None
    finish_reason: str = ""
    error: str = ""
    text: str = ""

    @property
    def per_token(self) -> float | None:
        """Seconds per token from the first text to the last (TPOT).

        A chunk may hold many tokens, so the time between chunks is no time between tokens: this is
        the mean over all tokens after the first. None where nothing was timed: fewer than two
        tokens, or all of them in one chunk.
        """
        if self.first is None or self.last is None or self.chunks < 2 or (self.tokens or 0) < 2:
            return None
        assert self.tokens is not None
        return (self.last - self.first) / (self.tokens - 1)


@dataclass(frozen=True)
class Phase:
    """One endpoint under one load in one round.

    Attributes:
        seconds: from the first request's start to the last one's end.
        client_seconds: processor time the client itself took from the machine.
    """

    endpoint: str
    load: OfferedLoad
    round: int
    seconds: float
    client_seconds: float
    answers: Sequence[StreamedAnswer]

    @property
    def tokens(self) -> int:
        """Of the requests that did not fail."""
        return sum(answer.tokens or 0 for answer in self.answers if not answer.error)


@dataclass(frozen=True)
class LoadResults:
    """A whole run. ``endpoints`` are what was asked where, ``settings`` those of the plan."""

    created: str
    machine: Machine
    settings: Mapping[str, Any]
    endpoints: Sequence[Mapping[str, Any]]
    phases: Sequence[Phase]


def as_json(results: LoadResults, figures: Any) -> dict[str, Any]:
    """Everything that was measured, and the figures of the tables."""
    document = {"schema": SCHEMA, **asdict(results)}
    phases = document.pop("phases")
    for phase in phases:
        for answer in phase["answers"]:
            del answer["text"]
    document["figures"] = rounded(figures)
    document["phases"] = rounded(phases)
    return document
