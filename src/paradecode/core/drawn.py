"""How the children of a tree node came about, and what sampled ones were drawn from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import DecoderError


class Mode(Enum):
    """How the children of one node came about."""

    DET = "det"
    """Chosen by a rule; for a verifier each child is certain (q is one-hot)."""
    IID = "iid"
    """Drawn one after another from q with replacement; equal children may occur."""
    SWOR = "swor"
    """Drawn one after another from q without replacement; children are distinct."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """The distribution that a node's children were drawn from, in the order of the nodes.

    Attributes:
        mode: IID or SWOR.
        ids: int32 [n], the tokens of q, ascending.
        probabilities: float64 [n], their probabilities, the same numbers that the draw used.
        order: if equal draws share one node, all drawn tokens in order; None if every draw has its
            own node.
    """

    mode: Mode
    ids: NDArray[np.int32]
    probabilities: NDArray[np.float64]
    order: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        ids = np.asarray(self.ids, np.int32)
        q = np.asarray(self.probabilities, np.float64)
        if ids.shape != q.shape or ids.ndim != 1 or not (q >= 0).all() or not 0 < q.sum() < np.inf:
            raise DecoderError("drawn children: q needs one finite weight >= 0 for each token id")
        if len(ids) > 1 and not (ids[1:] > ids[:-1]).all():
            raise DecoderError("drawn children: the token ids of q must be distinct and ascending")
        if self.mode is Mode.DET:
            raise DecoderError("drawn children: leave nodes that were not drawn out of ``drawn``")
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "probabilities", q / q.sum())

    def goes_on_as(self, other: Drawn) -> bool:
        """Whether ``other`` continues these draws; shared nodes must be drawn in one call."""
        return self is other or (
            self.mode is other.mode
            and self.order is other.order is None
            and np.array_equal(self.ids, other.ids)
            and np.array_equal(self.probabilities, other.probabilities)
        )

    def row(self, vocabulary: int) -> NDArray[np.float64]:
        """float64 [vocabulary]: q, zeros included."""
        row = np.zeros(vocabulary)
        row[self.ids] = self.probabilities
        return row

    def of(self, token: int) -> float:
        """The probability q of one token."""
        place = int(np.searchsorted(self.ids, token))
        known = place < len(self.ids) and self.ids[place] == token
        return float(self.probabilities[place]) if known else 0.0
