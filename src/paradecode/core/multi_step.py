"""Data with which a backend decodes several steps in one call, without running the method.

The backend may run draft, forward pass, coupled verification and commit many times in one call, for
all sequences of a batch. It makes the same tokens as the methods' own loops, and drafts by the same
rules. The native core does this in csrc/steps.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class BudgetState(NamedTuple):
    """The state of the budgets ``fixed`` and ``auto`` between two steps.

    Attributes:
        calibration: weight and overall ratio; then for each bucket the expected and the accepted
            number of draft tokens.
        refusals: three counts: consecutive refused drafts in this request; consecutive refused
            drafts in all requests of its tenant; and the number of coming steps without a draft. A
            draft is refused if the budget sends none of its tokens to verification.
        patience: the setting ``patience`` of ``auto``; 0 for ``fixed``.
        shared: the object in which the tenant's requests share ``calibration`` and the second count
            of ``refusals``, or None.
    """

    calibration: list[float]
    refusals: list[int]
    patience: int = 0
    shared: object = None


class LookupState(NamedTuple):
    """The state of prompt lookup between two steps.

    Attributes:
        odds, table_odds: counts for copied tokens and for the table's tokens. Each entry is a list
            for one kind of evidence: prior, accepted, tried, all accepted, and all tried.
        calibration, refusals, shared: see :class:`BudgetState`.
    """

    odds: list[list[float]]
    table_odds: list[list[float]]
    calibration: list[float]
    refusals: list[int]
    shared: object = None


class Table(Protocol):
    """An n-gram table that maps a context of up to 4 tokens to the tokens that follow it."""

    @property
    def keys(self) -> NDArray[np.uint32]:
        """Uint32 [n], ascending: hashes of contexts, as in ``methods/draft/ngram_table.py``.

        The most probable next token of a context comes first.
        """

    @property
    def values(self) -> NDArray[np.uint32]:
        """Uint32 [n]: the next token in the low 24 bits, and its bucket in the bits above."""


@dataclass(frozen=True, eq=False)
class Lookup:
    """The settings and the state with which a backend runs prompt lookup.

    Attributes:
        shortest, longest: smallest and largest length, in tokens, of the n-grams that are looked
            up.
        most: largest number of draft tokens in one forward pass.
        patience: see :class:`BudgetState`.
        table: n-gram table that drafts tokens where nothing can be copied, or None.
        read: returns the method's present state.
        write: gives the method the updated state.
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
    """Request several steps of the target in one call, each verified by the coupled rule.

    The reply is :class:`StepsMade`. Its ``count`` is 0 if the backend cannot make several steps,
    for example because of another sequence in the batch. The method then makes the step itself.

    Attributes:
        lookup: the settings of prompt lookup; None means plain decoding without drafts.
        steps: returns the largest number of steps to make now; None means until the output ends.
        hidden: returns the layers whose outputs the reply must have; None means no layer.
    """

    lookup: Lookup | None = None
    steps: Callable[[], int] | None = None
    hidden: Callable[[], tuple[int, ...]] | None = None


@dataclass(frozen=True, eq=False)
class StepsMade:
    """The reply to a :class:`MultiStep`.

    Attributes:
        count: number of steps that were made.
        hidden: layer -> float32 [n, hidden size]: the layer's outputs at the row from which each of
            the n committed tokens was drawn.
    """

    count: int = 0
    hidden: Mapping[int, NDArray[np.float32]] = field(default_factory=dict)
