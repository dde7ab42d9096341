"""The search by replay: all drafters, settings of the best ones, their fusions, and settings of
these.

Candidates are ranked by the speed that replay predicts.
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
"""Times that every profile has; older profiles do not have ``row``."""


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
    """Measured times of a search.

    Attributes:
        python: seconds of each replay (see :meth:`paradecode_lab.measure.tune.search.Scores.key`).
    """

    curve: CostCurve = checked(cost_curve)
    timing: Timing = checked(_timing)
    python: dict[str, float] = field(default_factory=dict, metadata={"check": _python})

    def record(self) -> dict[str, Any]:
        """The costs in the form in which a profile holds them."""
        return asdict(self)

    @classmethod
    def of(cls, record: Any) -> Costs:
        """Read what :meth:`record` gave; raises InvalidInput for anything else."""
        if not isinstance(record, dict) or "python" not in record:
            raise InvalidInput("costs", type(record).__name__, "give those of a profile")
        costs: Costs = build(cls, record, "costs")
        return costs


FIRST, SECOND = 5, 3
"""Number of drafters whose settings are searched, and of those that are fused with one another."""
GAIN = 1.005
"""The least factor in speed for which a setting is kept, because a replay is no more exact."""
STRIDES = 4
"""The most changes of settings in one climb; more search longer."""
NOTHING: Files = {}


@dataclass
class Scores:
    """Plays candidates on a recording, each once for each set of prompts.

    The counts of a replay are equal every time. Only the seconds of Python are measured, so these
    are kept.

    Attributes:
        python: seconds of Python by :meth:`key`; with those of an earlier search, a search decides
            in the same way.
        played: called for each replay.
    """

    recording: Recording
    python: dict[str, float] = field(default_factory=dict)
    played: Callable[[], None] = lambda: None
    _speeds: dict[str, float] = field(default_factory=dict, repr=False)

    def speed(self, candidate: CandidateMethod, prompts: Collection[str]) -> float:
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

    def speed_up(self, candidate: CandidateMethod, prompts: Collection[str]) -> float:
        """Predicted speed over that of plain decoding."""
        plain = self.speed(CandidateMethod.of(PLAIN), prompts)
        return self.speed(candidate, prompts) / plain if plain else 0.0

    @staticmethod
    def key(spec: str, prompts: Collection[str]) -> str:
        """The key of a replay in :attr:`python`."""
        return f"{spec} on {len(prompts)} prompts from {min(prompts)}"


def search(
    scores: Scores,
    names: Sequence[str],
    few: Collection[str],
    many: Collection[str],
    files: Files = NOTHING,
) -> list[CandidateMethod]:
    """Candidates, the best first.

    Args:
        names: methods to begin with.
        few: prompts on which settings are tried.
        many: prompts that decide the order of the results; ``few`` are among them.
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
    """Change one setting at a time, the best change first, while that pays."""
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
    """The candidates without repetitions, the fastest first."""
    return sorted(dict.fromkeys(candidates), key=lambda one: -scores.speed(one, prompts))
