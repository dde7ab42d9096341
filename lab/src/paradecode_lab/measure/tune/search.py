"""Searches by replay: drafters, settings of the best drafters, and then their fusions.

Candidates are ranked by the speed that a replay predicts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from paradecode.core.checks import build, checked, mapping, number
from paradecode.core.errors import InvalidInput
from paradecode.engine.cost import CostCurve
from paradecode_lab.measure.replay import Recording, play
from paradecode_lab.measure.replay.player import PLAIN
from paradecode_lab.measure.replay.recording import Timing, cost_curve
from paradecode_lab.measure.tune.candidate import CandidateMethod, Files

ALWAYS = {"forward", "python", "top_k", "sample"}
"""Names of the times that every profile has; profiles of older versions do not have ``row``."""


def _timing(name: str, given: Any) -> Timing:
    if not mapping(name, given).keys() >= ALWAYS:
        raise InvalidInput(name, sorted(given), f"give {', '.join(sorted(ALWAYS))}")
    timing: Timing = build(Timing, given, name)
    return timing


def _python(name: str, given: Any) -> dict[str, float]:
    seconds = number(-1e6, 1e6)
    return {str(key): seconds(name, value) for key, value in mapping(name, given).items()}


@dataclass
class Costs:
    """The measured times that a search depends on.

    Attributes:
        python: seconds of Python in each replay, by
            :meth:`paradecode_lab.measure.tune.search.Scores.key`.
    """

    curve: CostCurve = checked(cost_curve)
    timing: Timing = checked(_timing)
    python: dict[str, float] = field(default_factory=dict, metadata={"check": _python})

    def record(self) -> dict[str, Any]:
        """Return the costs as a mapping that a profile can hold."""
        return asdict(self)

    @classmethod
    def of(cls, record: Any) -> Costs:
        """Read a mapping that :meth:`record` returned; raises InvalidInput for any other value."""
        if not isinstance(record, dict) or "python" not in record:
            raise InvalidInput("costs", type(record).__name__, "give those of a profile")
        costs: Costs = build(cls, record, "costs")
        return costs


FIRST, SECOND = 5, 3
"""Number of drafters whose settings are searched, and number of drafters that are fused."""
GAIN = 1.005
"""The least factor in predicted speed for which a setting is changed.

A replay is not precise enough to show smaller differences.
"""
STRIDES = 4
"""The most changes of settings in one climb; more of them search longer."""
NOTHING: Files = {}


@dataclass
class Scores:
    """Replays candidates on a recording, each once for each set of prompts.

    The counts of a replay are the same every time. Only the seconds of Python are measured, so they
    are kept.

    Attributes:
        python: seconds of Python by :meth:`key`; if they come from an earlier search, this search
            decides in the same way.
        played: called after each replay.
    """

    recording: Recording
    python: dict[str, float] = field(default_factory=dict)
    played: Callable[[], None] = lambda: None
    _speeds: dict[str, float] = field(default_factory=dict, repr=False)

    def speed(self, candidate: CandidateMethod, prompts: Collection[str]) -> float:
        """Return the predicted decode speed in tokens per second.

        The result is 0 if the candidate cannot be replayed.
        """
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

    def speed_up(self, candidate: CandidateMethod, prompts: Collection[str]) -> float:
        """Return the predicted speed over that of plain decoding."""
        plain = self.speed(CandidateMethod.of(PLAIN), prompts)
        return self.speed(candidate, prompts) / plain if plain else 0.0

    @staticmethod
    def key(spec: str, prompts: Collection[str]) -> str:
        """Return the key of a replay in :attr:`python`."""
        return f"{spec} on {len(prompts)} prompts from {min(prompts)}"


def search(
    scores: Scores,
    names: Sequence[str],
    few: Collection[str],
    many: Collection[str],
    files: Files = NOTHING,
) -> list[CandidateMethod]:
    """Search for the fastest candidates, and return them, the best first.

    Args:
        names: methods to begin with.
        few: prompts on which settings are tried.
        many: prompts that decide the order of the results; they include ``few``.
        files: files that settings may name.
    """
    drafters = _ranked(scores, [CandidateMethod.of(name) for name in names], few)
    tuned = _ranked(scores, [climb(scores, one, few, files) for one in drafters[:FIRST]], few)
    pairs = [
        first.fused(second)
        for first in tuned[:SECOND]
        for second in tuned
        if second.parts[0][0] != first.parts[0][0]
    ]
    fusions = [climb(scores, one, few, files) for one in _ranked(scores, pairs, few)[:SECOND]]
    return _ranked(scores, [*drafters[:FIRST], *tuned, *fusions], many)


def climb(
    scores: Scores, start: CandidateMethod, prompts: Collection[str], files: Files = NOTHING
) -> CandidateMethod:
    """Change one setting at a time, always the best one, while the gain is large enough."""
    best = start
    for _ in range(STRIDES):
        nearby = [one for one in best.neighbours(files) if one.valid]
        found = _ranked(scores, nearby, prompts)[:1]
        if not found or scores.speed(found[0], prompts) < GAIN * scores.speed(best, prompts):
            break
        best = found[0]
    return best


def _ranked(
    scores: Scores, candidates: Sequence[CandidateMethod], prompts: Collection[str]
) -> list[CandidateMethod]:
    """Return the candidates without repetitions, the fastest first."""
    return sorted(dict.fromkeys(candidates), key=lambda one: -scores.speed(one, prompts))
