"""What a search has measured rather than counted: with it, a search can be repeated exactly."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from paradecode.core.checks import build, checked, mapping, number
from paradecode.core.errors import InvalidInput
from paradecode.engine.cost import CostCurve
from paradecode.measure.replay.recording import Timing, cost_curve

ALWAYS = {"forward", "python", "top_k", "sample"}
"""Times that every profile has; ``row`` is missing in older ones."""


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
        curve: t(rows, context).
        timing: constants of replay.
        python: seconds of each replay (see :meth:`paradecode.measure.tune.search.Scores.key`).
    """

    curve: CostCurve = checked(cost_curve)
    timing: Timing = checked(_timing)
    python: dict[str, float] = field(default_factory=dict, metadata={"check": _python})

    def record(self) -> dict[str, Any]:
        """As a profile holds them."""
        return asdict(self)

    @classmethod
    def of(cls, record: Any) -> Costs:
        """Read what :meth:`record` gave; raises InvalidInput for anything else."""
        if not isinstance(record, dict) or "python" not in record:
            raise InvalidInput("costs", type(record).__name__, "give those of a profile")
        costs: Costs = build(cls, record, "costs")
        return costs
