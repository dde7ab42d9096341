"""Several steps in one call: what a backend must know to decode without the method for a while.

The backend may run draft, forward, coupled verification and commit many times in one call, for all
sequences of a batch. It does the same as the methods' own loops: the same tokens, and drafts by the
same rules. The native core does this in csrc/steps.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class BudgetState(NamedTuple):
    """What the budgets ``fixed`` and ``auto`` know between two steps.

    Attributes:
        calibration: weight and overall ratio; then for each bucket the promised and the accepted
            number of tokens.
        refusals: how many drafts in a row had no token verified, in this request and in all of its
            tenant's requests; and how many of the next steps have no draft.
        patience: the setting of ``auto``; 0 for ``fixed``.
        shared: the object in which the tenant's requests share ``calibration`` and the second of
            ``refusals``, or None.
    """

    calibration: list[float]
    refusals: list[int]
    patience: int = 0
    shared: object = None


class LookupState(NamedTuple):
    """What prompt lookup knows between two steps.

    Attributes:
        odds, table_odds: what was counted for copied tokens, and for the table's tokens: lists of
            each kind's prior, accepted, tried, all accepted, and all tried.
        calibration, refusals, shared: see :class:`BudgetState`.
    """

    odds: list[list[float]]
    table_odds: list[list[float]]
    calibration: list[float]
    refusals: list[int]
    shared: object = None


class Table(Protocol):
    """Maps a context of up to 4 tokens to the tokens that follow it."""

    @property
    def keys(self) -> NDArray[np.uint32]:
        """uint32 [n], ascending: hashes of contexts, computed as in
        ``methods/draft/ngram_table.py``. The likeliest token of a context comes first."""

    @property
    def values(self) -> NDArray[np.uint32]:
        """uint32 [n]: the token that follows, and from bit 24 on its bucket."""


@dataclass(frozen=True, eq=False)
class Lookup:
    """What a backend needs to run prompt lookup.

    Attributes:
        shortest, longest: bounds on the n-grams that are looked up.
        most: draft tokens in one forward.
        patience: see :class:`BudgetState`.
        read, write: get what the method has learned so far, and give back what was learned since.
    """

    shortest: int
    longest: int
    most: int
    patience: int
    table: Table | None
    read: Callable[[], LookupState]
    write: Callable[[LookupState], None]


@dataclass(frozen=True, eq=False)
class MultiStep:
    """Ask for several steps of the target in one call, each verified by the coupled rule.

    The reply is :class:`StepsMade`. Its ``count`` is 0 where the backend cannot do that, or not now
    (because of another sequence that shares the steps, say). The method then makes the step itself.

    Attributes:
        lookup: how to draft; None drafts nothing, which is plain decoding.
        steps: gives the most steps now; None means as many as the output has.
        hidden: gives the layers whose outputs the reply holds; None means no layer.
    """

    lookup: Lookup | None = None
    steps: Callable[[], int] | None = None
    hidden: Callable[[], tuple[int, ...]] | None = None


@dataclass(frozen=True, eq=False)
class StepsMade:
    """Reply to a :class:`MultiStep`.

    Attributes:
        count: number of steps that were made.
        hidden: layer -> float32 [n, hidden size]: its outputs in front of each of the n tokens that
            the steps committed.
    """

    count: int = 0
    hidden: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
