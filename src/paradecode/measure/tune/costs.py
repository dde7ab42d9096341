"""What a search has measured rather than counted: kept, a search can be repeated exactly."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from paradecode.core.errors import InvalidInput
from paradecode.engine.cost import CostCurve
from paradecode.measure.replay.recording import Timing

MOST_SECONDS = 1e6


@dataclass
class Costs:
    """Attributes: t(rows, context), constants of replay, and the Python seconds of each replay
    (see :meth:`paradecode.measure.tune.scores.Scores.key`)."""

    curve: CostCurve
    timing: Timing
    python: dict[str, float] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """As a profile holds them."""
        return asdict(self)

    @classmethod
    def of(cls, record: Any) -> Costs:
        """Read what :meth:`record` gave.

        Raises:
            InvalidInput: for anything else.
        """
        try:
            curve, timing, python = record["curve"], record["timing"], record["python"]
            timing = {"row": 0.0, **timing}  # Profiles from before it was measured.
            costs = cls(
                CostCurve(
                    tuple(int(k) for k in curve["rows"]),
                    tuple(int(c) for c in curve["contexts"]),
                    tuple(tuple(float(t) for t in column) for column in curve["seconds"]),
                ),
                Timing(**{entry.name: float(timing[entry.name]) for entry in fields(Timing)}),
                {str(key): float(value) for key, value in python.items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            raise InvalidInput("costs", type(record).__name__, "give those of a profile") from None
        seconds = [*costs.python.values(), *asdict(costs.timing).values()]
        if not costs.curve.sound or not all(abs(s) < MOST_SECONDS for s in seconds):
            raise InvalidInput("costs", "seconds", "give finite times on an ascending grid")
        return costs
