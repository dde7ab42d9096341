"""Books what the drafts of a model cost and gain, and judges whether the model has earned its
time."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from paradecode.methods.draft.acceptance import Calibration

MEMORY = 0.9
"""Factor on an old draft's gain and price at each later one; higher judges by more drafts."""
HOPE = 0.7
"""Chance that the first token of an unknown drafter is right; higher tries unknown ones more."""
RECENT = 0.1
"""Weight of a new draft in such a chance; higher follows the text faster, and its noise."""
LONG = 1 / 32
"""Weight of a new draft in what drafts usually gain; higher forgets the usual gain faster."""
TRUST = 2
"""The loss, in usual gains of a draft, after which the drafter rests; higher is more patient."""
LOSS = 1 / 32
"""Share of plain decoding's time that drafts may lose; higher tries a bad drafter more often."""
LONGEST = 16
"""The longest pause of a drafter, in units of ``patience``."""


@dataclass(eq=False)
class Experience:
    """What the requests of a tenant have learned about a drafter.

    Attributes:
        refused: drafts in a row, of all requests, of which nothing was worth verifying.
        failed: whether the last drafts of a model did not earn their time.
        owed: seconds that drafts of a model have lost and that steps without it have not paid back.
            Reading a prompt counts as a loss until drafts have gained it. Below 0, it is what the
            last drafts have gained.
        first: share of a model's drafts whose first token was right. Without drafts it returns
            slowly to :data:`HOPE`.
        usual: seconds that a model's draft gained beyond its price: a mean over many drafts.
    """

    calibration: Calibration = field(default_factory=Calibration)
    refused: int = 0
    failed: bool = False
    owed: float = -math.inf
    first: float = HOPE
    usual: float = 0.0


@dataclass(eq=False)
class DraftAccount:
    """Judges a drafter that costs time, in one request.

    Attributes:
        patience: steps of the shortest pause.
        learned: what all requests of the tenant have learned.
        plain: seconds that a token takes now without a draft.
        spent: seconds of this step's drafting.
        price: seconds of this step's drafting, with those that its verification adds.
        gained: tokens that recent drafts gained.
        paid: seconds that they cost.
        pause: steps of the last rest.
        owing: whether a loss may have to be paid back before the next draft.
    """

    patience: int
    learned: Experience = field(default_factory=Experience)
    plain: float = 0.0
    spent: float = 0.0
    price: float = 0.0
    gained: float = 2.0
    paid: float = 0.0
    pause: int = 0
    owing: bool = False

    @property
    def lost(self) -> float:
        """Seconds by which recent drafts cost more than they gained."""
        return self.paid - self.gained * self.plain

    def begin_step(self, plain: float) -> None:
        self.plain, self.spent, self.price = plain, 0.0, 0.0

    def take_up(self, learned: Experience) -> int:
        """Begin with what the tenant has learned; returns how many steps the model rests first."""
        self.learned, self.owing = learned, True
        if not learned.failed:
            return 0
        self.gained, self.pause = 0.0, self.patience
        return self.pause

    def judge(self, accepted: int) -> int:
        """Book this step's draft; returns for how many steps the drafter rests, 0 if it earned.

        Args:
            accepted: accepted draft tokens, without those of copies that were there before.
        """
        learned = self.learned
        learned.first += RECENT * ((accepted > 0) - learned.first)
        self.gained = MEMORY * self.gained + accepted
        self.paid = MEMORY * self.paid + self.price
        more, lost = self.price - accepted * self.plain, self.lost
        learned.owed = max(learned.owed + more, lost)
        learned.usual -= LONG * (more + learned.usual)
        learned.failed = lost > TRUST * max(learned.usual, 0.0)
        if not learned.failed:
            self.pause //= 2
            return 0
        self.pause = min(max(2 * self.pause, self.patience), LONGEST * self.patience)
        self.owing = True
        # The next trial is judged by what it brings itself, not by the past.
        self.gained = self.paid = 0.0
        return self.pause

    def sink(self, seconds: float) -> None:
        """Add seconds to the debt without judging a draft by them."""
        self.learned.owed = max(self.learned.owed, self.lost) + seconds

    def due(self, neighbours: int) -> int:
        """Number of steps that pay the loss back, together with those of the neighbours.

        The result is 0 where this request is not to be held up by it, or not any more.
        """
        if not self.owing or self.plain == 0.0:
            return 0
        step = LOSS * self.plain * (1 + neighbours)
        # Sums of many payments are off in their last bits.
        steps = math.ceil(max(self.learned.owed, 0.0) / step - 1e-6)
        self.owing = steps > 0
        return steps

    def pay(self, steps: int) -> None:
        """Pay the loss back by so many steps that went without the model."""
        if self.learned.owed > 0:
            self.learned.owed = max(0.0, self.learned.owed - steps * LOSS * self.plain)
