"""Records the cost and the gain of a model's drafts, and decides when the drafter pauses."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from paradecode.methods.draft.acceptance import Calibration

MEMORY = 0.9
"""Decay factor: each new draft multiplies the recorded gain and cost of earlier drafts by it.

A higher value judges by more drafts.
"""
HOPE = 0.7
"""Assumed probability that the first token of an unknown drafter is right.

A higher value tries unknown drafters more often.
"""
RECENT = 0.1
"""Weight of a new draft in running means of probabilities.

A higher value adapts faster to the text, and also to chance.
"""
LONG = 1 / 32
"""Weight of a new draft in the running mean of a draft's gain in seconds.

A higher value forgets old drafts faster.
"""
TRUST = 2
"""The loss after which the drafter pauses, as a multiple of a draft's usual gain.

A higher value is more patient.
"""
LOSS = 1 / 32
"""The share of plain decoding's time that drafts may lose.

A higher value tries a bad drafter more often.
"""
LONGEST = 16
"""The longest pause of a drafter, as a multiple of ``patience``."""


@dataclass(eq=False)
class Experience:
    """Measurements of a drafter that all requests of a tenant share.

    Attributes:
        refused: number of consecutive drafts, over all requests, without a node worth verifying.
        failed: True if the last drafts of a model cost more time than they saved.
        owed: seconds that a model's drafts have lost, minus the seconds that steps without drafts
            have made up for. The time of reading a prompt counts as a loss until drafts have gained
            as much. A negative value is what the last drafts have gained.
        first: share of a model's drafts whose first token was right. While nothing is drafted, it
            returns slowly to :data:`HOPE`.
        usual: mean of the seconds that a draft of a model gained beyond its cost, over many drafts.
    """

    calibration: Calibration = field(default_factory=Calibration)
    refused: int = 0
    failed: bool = False
    owed: float = -math.inf
    first: float = HOPE
    usual: float = 0.0


@dataclass(eq=False)
class DraftAccount:
    """Decides, in one request, whether a drafter that costs time is worth it.

    Attributes:
        patience: number of steps in the shortest pause.
        learned: measurements that all requests of the tenant share.
        plain: seconds that a token takes now without a draft.
        spent: seconds of drafting in this step.
        price: seconds of drafting in this step, plus the seconds by which the draft lengthens the
            verification.
        gained: tokens that recent drafts gained, with decay.
        paid: seconds that recent drafts cost, with decay.
        pause: number of steps of the last pause.
        owing: True if a loss may have to be made up for before the next draft.
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
        """The seconds by which recent drafts cost more than they gained."""
        return self.paid - self.gained * self.plain

    def begin_step(self, plain: float) -> None:
        self.plain, self.spent, self.price = plain, 0.0, 0.0

    def take_up(self, learned: Experience) -> int:
        """Adopt the tenant's measurements; return for how many steps the model pauses first."""
        self.learned, self.owing = learned, True
        if not learned.failed:
            return 0
        self.gained, self.pause = 0.0, self.patience
        return self.pause

    def judge(self, accepted: int) -> int:
        """Record this step's draft, and return for how many steps the drafter pauses now.

        The number is 0 if the draft was worth its time.

        Args:
            accepted: number of accepted draft tokens, without the tokens that copies alone would
                have brought.
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
        # The next trial is judged by its own gain only.
        self.gained = self.paid = 0.0
        return self.pause

    def sink(self, seconds: float) -> None:
        """Add seconds to the loss that drafts must make up for, without judging a draft by them."""
        self.learned.owed = max(self.learned.owed, self.lost) + seconds

    def due(self, neighbours: int) -> int:
        """Return the number of steps without drafts that make up for the loss.

        In each of these steps the neighbours (other requests of the batch) make up for a part of
        it, too. The result is 0 if this request does not have to wait.
        """
        if not self.owing or self.plain == 0.0:
            return 0
        step = LOSS * self.plain * (1 + neighbours)
        # Sums of many payments have rounding errors.
        steps = math.ceil(max(self.learned.owed, 0.0) / step - 1e-6)
        self.owing = steps > 0
        return steps

    def pay(self, steps: int) -> None:
        """Reduce the loss by the share that ``steps`` steps without the model make up for."""
        if self.learned.owed > 0:
            self.learned.owed = max(0.0, self.learned.owed - steps * LOSS * self.plain)
