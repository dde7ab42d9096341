"""The budget ``auto``, which verifies the draft tokens that are worth their time on this machine.

If no draft token is worth its time for a while, the drafter pauses.
"""

from __future__ import annotations

from dataclasses import field
from enum import Enum

import numpy as np

from paradecode.core.decoder import TokenSequence, Verdict
from paradecode.core.multi_step import BudgetState
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.methods.draft.budgets.account import HOPE, RECENT, DraftAccount, Experience
from paradecode.methods.draft.contracts import (
    Budget,
    Estimates,
    Marks,
    Needs,
    Nodes,
    Seconds,
    first_reach,
    reach_of,
)
from paradecode.methods.parts import declare, parameter

HABIT = 4
"""Number of consecutive refused drafts after which a cheap drafter is asked less often.

A higher value asks a bad drafter more often.
"""
FORGOTTEN = 1 / 64
"""The share of a bad opinion of a drafter that is forgotten at each step without a draft.

A higher value tries the drafter again sooner.
"""
SOME = 4
"""Assumed number of nodes in a draft. The cost of one row is the mean over this number of rows.

A higher value smooths more.
"""
OTHERS = 1.5
"""Weight of each neighbour (another request of the batch), in tokens per step.

A higher value drafts less beside other requests. The weight is above 1 for two reasons. A longer
step surely delays a neighbour, while the gain is not sure. And if a list of requests ends with its
last output, drafts of the other requests shorten it little.
"""
AHEAD = 8
"""The most levels whose gain may justify the first forward pass of a draft model.

A higher value begins more drafts.
"""


class Phase(Enum):
    """The budget's three ways to use the drafter in a step."""

    ASKS = "asks"
    """The drafter drafts, and the nodes that are worth their time are verified."""
    TRIAL = "trial"
    """The drafter drafts once, or one node is verified, although no gain is expected."""
    RESTS = "rests"
    """The drafter does not draft. In a fusion only the drafters that run a model pause."""


@declare("budget", "auto", paper="none: this project's own")
class AutoBudget(Budget):
    """Verify as many nodes as this machine gains from: the K with the most tokens per second.

    K nodes give (1 + 1.5 neighbours + expected accepted) / (draft + t(1 + K)) tokens per second,
    where t(n) is the measured time of a step with n rows. Neighbours are the other requests of the
    batch; their tokens are in the numerator because a longer step delays them too. The expected
    number of accepted nodes is the sum of their acceptance probabilities (``reach``), corrected by
    past verifications. K = 0 is a choice like any other, so a bad drafter costs next to nothing.
    Without a measured cost curve every node is verified, as ``fixed`` does.

    In each step the budget is in one of three phases (:class:`Phase`):

    | phase | what leads to it | what it leads to | |---|---|---| | asks | nothing speaks against a
    draft | a rest after refusals or a loss | | trial | ``patience`` refusals in a row, of drafts or
    a model's forwards | asks or rests | | rests | refusals, a loss, or reading the prompts of
    several requests | asks when it is over |

    A draft of a drafter that costs no time is refused if none of its nodes gains time. After
    ``HABIT`` consecutive refusals the drafter rests. Each further refusal and each neighbour makes
    the rest longer, up to ``patience`` steps. A request begins with the number of refusals at which
    the last request of the same tenant and method ended.

    A drafter that runs a model has spent time before its tree can be judged, so each of its
    forwards must promise to raise the number of tokens per second. The first forward is judged by
    how often first tokens were right recently. A head drafts all its levels in one call; it drafts
    a level only if the level's node is worth the level's time and a row of the verification. In a
    batch, a head that does not promise this gets no hidden states of the target.

    Each draft of a model is recorded (:class:`DraftAccount`). If the last drafts gained less than
    they cost, by more than the usual gain of two drafts, the model rests for ``patience`` steps.
    The rest is twice as long after each failed trial, up to 16 times, and half as long after a
    trial that gains time. It lasts until the loss is at most 1/32 of the time of as many plain
    steps. The time for reading the prompt counts as lost until drafts have gained as much, and the
    remaining loss is kept for later requests of the tenant. Drafts therefore cost a tenant at most
    1/32 of plain decoding's time, one trial for each running request, and the gain of two earlier
    drafts.

    In a fusion the model is asked where copies are likely to be wrong. The budget compares this
    probability with its value at earlier drafts of the model. It asks the model if drafting then
    gains more per second than verifying the copies. Tokens that the copies alone would have brought
    are no gain of the model.

    For prompt lookup the native core decides in the same way, bit by bit, in ``csrc/lookup.cpp``
    (``Lookup::cut``).
    """

    weighs = True
    patience: int = parameter(16, 1, 1024, "number of refusals after which one node is tried")
    phase: Phase = field(default=Phase.ASKS, init=False, repr=False)
    _new_method: str = field(default="", init=False, repr=False)
    _refused: int = field(default=0, init=False, repr=False)
    _declined: int = field(default=0, init=False, repr=False)
    _unasked: int = field(default=0, init=False, repr=False)
    _follow: float = field(default=HOPE, init=False, repr=False)
    _missed: float = field(default=1.0, init=False, repr=False)
    _copies: TokenTree = field(default=EMPTY, init=False, repr=False)
    _copied: float = field(default=0.0, init=False, repr=False)

    def __post_init__(self) -> None:
        self.account = DraftAccount(self.patience)

    @property
    def learned(self) -> Experience:
        return self.account.learned

    def begin(self, method: str, needs: Needs) -> None:
        self._new_method = method

    def limit(self, seq: TokenSequence) -> int:
        self.account.begin_step((seq.step_seconds(1) or 0.0) / (1 + seq.neighbours))
        self._copies, self._copied = EMPTY, 0.0
        if self._new_method:
            self._begin_request(seq)
        waiting = self.asleep if self.fused else self.rest
        if waiting == 0:
            waiting = self.account.due(seq.neighbours)
            self._rest_model(waiting)
        self.phase = Phase.RESTS if waiting else Phase.ASKS
        if self.fused and waiting:
            self.asleep -= 1
        if self.rest > 0:
            self.rest -= 1
            return 0
        return self.count

    def _begin_request(self, seq: TokenSequence) -> None:
        learned = seq.shared(f"auto budget {self._new_method}", Experience)
        self._new_method = ""
        self._refused = learned.refused
        self._rest_if_refused(seq)
        self._rest_model(self.account.take_up(learned))
        # In a batch nothing is drafted for the prompt's step: it would delay all requests.
        if seq.neighbours and seq.step_seconds(1) is not None:
            self.rest = max(self.rest, 1)

    def asks(self, seq: TokenSequence, drafted: TokenTree) -> bool:
        if self.phase is Phase.RESTS:
            return False
        base, asked = seq.step_seconds(1), super().asks(seq, drafted)
        if base is None:
            return asked
        nodes, price, rate = self._best(seq, drafted, base)
        first = self.learned.calibration.one(first_reach(drafted)) if len(drafted) else 0.0
        missed = 1.0 - first
        if self.account.paid > 0.0 and len(drafted):
            pays = missed * self.account.gained > self._missed * self.account.paid * rate
            self._unasked = 0 if pays else self._unasked + asked
            asked = pays or (asked and self._unasked % self.patience == 0)
            self.phase = Phase.ASKS if pays or not asked else Phase.TRIAL
        if asked:
            self._copies, self._copied = drafted.best(nodes), price
            self._missed += RECENT * (missed - self._missed)
        return asked

    def expand(self, seq: TokenSequence, tree: TokenTree, leaves: Nodes, seconds: Seconds) -> Nodes:
        leaves = super().expand(seq, tree, leaves, seconds)
        if len(leaves):
            paying = self._paying(seq, tree, leaves, seconds)
            if len(tree) == 0:
                paying = len(leaves) * self._begins(paying > 0)
            leaves = leaves[:paying]
        if len(leaves):
            self.account.spent += seconds(len(leaves))
        return leaves

    def wants_states(self, seq: TokenSequence, seconds: float) -> bool:
        if seq.neighbours == 0:
            return True
        root = np.array([ROOT], np.int32)
        return self._begins(self._paying(seq, EMPTY, root, lambda rows: seconds) > 0)

    def least(self, seq: TokenSequence, seconds: float) -> float:
        # A level adds a node, which takes a row of the verification and has to be right. Other
        # requests of the batch lose time as well.
        base, some = seq.step_seconds(1), seq.step_seconds(1 + SOME)
        if base is None or some is None:
            return super().least(seq, seconds)
        row = (some - base) / SOME
        worth = 1.0 + max(self.learned.usual, 0.0) / some
        return (seconds + row) / base * worth * (1 + OTHERS * seq.neighbours) / self._follow

    def grow(
        self, seq: TokenSequence, tree: TokenTree, parents: Nodes, estimates: Estimates
    ) -> Marks:
        self._follow += RECENT * (float(estimates[0, 0]) - self._follow)
        return super().grow(seq, tree, parents, estimates)

    def cut(self, seq: TokenSequence, tree: TokenTree) -> TokenTree:
        tree = tree.capped(self.count)
        base = seq.step_seconds(1)
        if base is None:
            return tree
        self.account.price = self.account.spent
        if len(tree) == 0 or tree.sampled:  # The size must not depend on sampled tokens.
            return tree
        best, price, _ = self._best(seq, tree, base)
        self._refused = 0 if best else self._refused + 1
        self.learned.refused = 0 if best else self.learned.refused + 1
        if best == 0 and self._refused % self.patience == 0:
            self.phase = Phase.TRIAL
            best, price = 1, (seq.step_seconds(2) or base) - base
        else:
            self._rest_if_refused(seq)
        self.account.price += price - self._copied
        return tree.best(best)

    def observe(self, tree: TokenTree, verdict: Verdict) -> None:
        path = tree.follow(verdict.tokens[:-1])
        if len(tree):
            self.learned.calibration.update(tree.reach, path)
        if self.account.spent == 0:
            self.account.pay(1)
        elif self.account.plain > 0:
            accepted = len(path) - len(self._copies.follow(verdict.tokens))
            self._rest_model(self.account.judge(accepted))

    def charge(self, seconds: float, sunk: bool = False) -> None:
        if sunk:
            self.account.sink(seconds)
        else:
            self.account.spent += seconds
            self.account.price += seconds

    def rested(self, count: int) -> None:
        super().rested(count)
        self.account.pay(count)

    def read(self) -> BudgetState:
        refusals = [self._refused, self.learned.refused, self.rest]
        return BudgetState(self.learned.calibration.read(), refusals, self.patience, self.learned)

    def write(self, known: BudgetState) -> None:
        self.learned.calibration.write(known.calibration)
        self._refused, self.learned.refused, self.rest = known.refusals

    def _best(self, seq: TokenSequence, tree: TokenTree, base: float) -> tuple[int, float, float]:
        """Return the best number of nodes, their cost in seconds, and the tokens per second."""
        spent, expected = self.account.spent, 1.0 + OTHERS * seq.neighbours
        best, price, rate = 0, 0.0, expected / (spent + base)
        for nodes, reach in enumerate(sorted(tree.reach.tolist(), reverse=True), 1):
            expected += self.learned.calibration.one(reach)
            seconds = seq.step_seconds(1 + nodes) or base
            if expected > rate * (spent + seconds):
                best, price, rate = nodes, seconds - base, expected / (spent + seconds)
        return best, price, rate

    def _rest_if_refused(self, seq: TokenSequence) -> None:
        if self._refused >= HABIT:
            self.rest = min(self._refused // HABIT + seq.neighbours, self.patience)

    def _rest_model(self, steps: int) -> None:
        """Pause drafters that run a model for ``steps`` steps; others of a fusion go on."""
        if self.fused:
            self.asleep = max(self.asleep, steps)
        else:
            self.rest = max(self.rest, steps)

    def _begins(self, pays: bool) -> bool:
        """Decide whether a model drafts now, and pause it if not.

        The model drafts if a draft is worth its time. It also drafts as a trial after ``patience``
        consecutive refusals, because old measurements become outdated. Each further refusal makes
        the pause longer.
        """
        self._declined = 0 if pays else self._declined + 1
        if pays:
            return True
        if self._declined % self.patience == 0:
            self.phase = Phase.TRIAL
            return True
        rest = min(self._declined, self.patience)
        self.learned.first += FORGOTTEN * rest * (HOPE - self.learned.first)
        self._rest_model(rest)
        return False

    def _paying(self, seq: TokenSequence, tree: TokenTree, leaves: Nodes, seconds: Seconds) -> int:
        """Return the number of ``leaves`` (best first) to expand: all of them, one, or none.

        The method looks several levels ahead, because the verification time t(K) rises in steps:
        the next node alone may not be worth its time although the next four are. The first forward
        pass is judged by how often first tokens were right.
        """
        nodes, room = len(tree), self.count - len(tree)
        verify = seq.step_seconds(1 + nodes)
        if verify is None:
            return len(leaves)
        spent, calibration = self.account.spent, self.learned.calibration
        accepted = float(calibration.of(tree.reach).sum())
        value = 1.0 + OTHERS * seq.neighbours + accepted
        reach = reach_of(tree, leaves)
        if nodes:  # The root needs no correction.
            reach = calibration.of(reach)
        best, chosen = value / (spent + verify), 0
        ahead = self._follow if nodes else self.learned.first
        for rows in {len(leaves), 1}:
            gain = 0.0
            for level in range(1, max(1, min(room // rows, AHEAD)) + 1):
                gain += float(reach[:rows].sum()) * ahead * self._follow ** (level - 1)
                added = min(rows * level, max(room, 0))
                more = level * seconds(rows) + (seq.step_seconds(1 + nodes + added) or verify)
                rate = (value + gain) / (spent + more)
                if rate > best:
                    best, chosen = rate, rows
        return chosen
