"""What the engine's steps hold at present, and what one of them would cost with other rows."""

from __future__ import annotations

from dataclasses import dataclass, field

from paradecode.core.request import TARGET
from paradecode.engine.cost import CostCurve

STEP_SECONDS, SEQUENCE_SECONDS, DRAFT_SECONDS = 8e-5, 8e-5, 6e-5
"""Python's part of a step: once, for each sequence, and for a sequence's draft (measured)."""


@dataclass
class Load:
    """What the engine's target steps hold at present, and what they cost.

    Attributes:
        curve: measured cost of a forward, or None.
        others: the same for the other models.
        sequences, rows: of the last target forward.
    """

    curve: CostCurve | None = None
    others: dict[str, CostCurve] = field(default_factory=dict)
    sequences: int = 1
    rows: int = 1

    @property
    def overhead(self) -> float:
        """Seconds of a step outside of forwards."""
        return STEP_SECONDS + SEQUENCE_SECONDS * self.sequences

    def seconds(self, model: str, rows: int, before: int, length: int) -> float | None:
        """Of a step with ``rows`` rows of a sequence; None where the cost was not measured.

        Args:
            before: its rows in the last target forward; those of the others stay.
            length: its tokens.
        """
        if model != TARGET:
            other = self.others.get(model)
            return other.at(rows, length) + self.overhead if other else None
        if self.curve is None:
            return None
        forward = self.curve.at(max(0, self.rows - before) + rows, length)
        return forward + self.overhead + (DRAFT_SECONDS if rows > 1 else 0.0)
