"""Predicted speed of candidates, by replay, remembered."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from paradecode.core.errors import InvalidInput
from paradecode.measure.replay import Recording, play
from paradecode.measure.tune.candidate import Candidate

PLAIN = "greedy"


@dataclass
class Scores:
    """Plays candidates on a recording, each once for each set of prompts.

    What replay counts is the same every time. What it measures is Python's part, so those seconds
    are kept.

    Attributes:
        python: seconds of Python by :meth:`key`; given those of an earlier search, a search decides
            as that one did.
        played: called for each replay.
    """

    recording: Recording
    python: dict[str, float] = field(default_factory=dict)
    played: Callable[[], None] = lambda: None
    _speeds: dict[str, float] = field(default_factory=dict, repr=False)

    def speed(self, candidate: Candidate, prompts: Collection[str]) -> float:
        """Predicted decode tokens per second; 0 for a candidate that cannot be played."""
        key = self.key(str(candidate), prompts)
        if key not in self._speeds:
            try:
                totals = play(self.recording, str(candidate), prompts=prompts).totals()
            except InvalidInput:
                self._speeds[key] = 0.0
                return 0.0
            self.played()
            python = self.python.setdefault(key, totals.seconds - totals.forward_seconds)
            seconds = totals.forward_seconds + python
            self._speeds[key] = totals.later / seconds if seconds > 0 else 0.0
        return self._speeds[key]

    def speed_up(self, candidate: Candidate, prompts: Collection[str]) -> float:
        """Predicted speed over that of plain decoding."""
        plain = self.speed(Candidate.of(PLAIN), prompts)
        return self.speed(candidate, prompts) / plain if plain else 0.0

    @staticmethod
    def key(spec: str, prompts: Collection[str]) -> str:
        """How :attr:`python` names a replay."""
        return f"{spec} on {len(prompts)} prompts from {min(prompts)}"
