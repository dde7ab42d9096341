"""The budget ``auto``: what pays on this machine, and soon nothing where nothing pays."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from paradecode.core.multi_step import BudgetState
from paradecode.core.sequence import TokenSequence, Verdict
from paradecode.core.tree import EMPTY, ROOT, TokenTree
from paradecode.methods.draft.acceptance import Calibration
from paradecode.methods.draft.budgets.base import (
    Budget,
    Estimates,
    Marks,
    Nodes,
    Seconds,
    first_reach,
    reach_of,
)
from paradecode.methods.draft.needs import Needs
from paradecode.methods.parameters import parameter
from paradecode.methods.parts import declare

HABIT = 4
"""Refusals in a row after which a drafter is asked less often."""
MEMORY = 0.9
"""What an old draft's gain and price count after each later one."""
HOPE = 0.7
"""What is thought of a drafter that nothing is known of: chance that its next token is right."""
RECENT = 0.1
"""What a new draft counts in such a chance."""
FORGOTTEN = 1 / 64
"""Of what is thought worse of a drafter than hoped, in a step for which it was refused."""
LONG = 1 / 32
"""What a new draft counts in what drafts usually gain."""
SOME = 4
"""Nodes of a usual draft: a row of a verification costs what these cost, divided by them."""
TRUST = 2
"""The last drafts may lose what so many of the usual ones gain."""
LOSS = 1 / 32
"""What drafts that gain nothing may cost, as a share of plain decoding's time."""
OTHERS = 1.5
"""Tokens that a neighbour counts for: what it loses by a longer step is certain, the gain is not;
and where a list ends with its last output, drafts of the others shorten it little."""


@dataclass(eq=False)
class Experience:
    """What the requests of a tenant have learned of a drafter.

    Attributes:
        refused: drafts in a row, whoever asked for them, of which nothing was worth verifying.
        failed: the last drafts that cost a model's time did not earn it.
        owed: seconds that drafts of a model have lost, and steps without it have not paid for yet;
            what reading a prompt took counts until drafts have gained it. Below 0: what the last
            drafts gained.
        first: share of a model's drafts whose first token was right; without drafts it goes back
            to what is hoped of a drafter that nothing is known of.
        usual: seconds that a model's draft gained, beyond its price: the mean of many.
    """

    calibration: Calibration = field(default_factory=Calibration)
    refused: int = 0
    failed: bool = False
    owed: float = -math.inf
    first: float = HOPE
    usual: float = 0.0


@declare("budget", "auto", paper="none: this project's own")
@dataclass
class AutoBudget(Budget):
    """Verify as many nodes as pay on this machine: the K that gives the most tokens per second.

    K nodes give (1 + 1.5 neighbours + expected accepted) / (draft + t(1 + K)) tokens a second,
    where t(n) is the measured time of a step of n rows. The neighbours' tokens are in the numerator
    because a longer step delays them too. Expected acceptance is the sum of the nodes' reach,
    corrected by how past predictions turned out. K = 0 is a choice like any other, so a bad drafter
    costs next to nothing. After every ``patience`` refusals one node is tried all the same, to
    notice a drafter that has become good.

    A drafter that runs a model has spent time before its tree can be judged. So each of its
    forwards must promise to raise the rate, the first one by how often first tokens were right of
    late; if it does not, the drafter rests. A head makes its levels in one call, each only where
    the node it brings earns the level and a row of the verification at the rate of late. When its
    recent drafts gained less than they cost, by more than two of its usual drafts gain, it rests:
    for ``patience`` steps, and twice as long after every failed trial, up to 16 times; longer where
    what was lost is more than 1/32 of the time of so many plain steps. What it took to read the
    prompt counts as lost until later drafts have gained it, and what one request has lost is paid
    by the next ones, too: a drafter of which they know nothing good reads few prompts. So, whatever
    the texts, drafts cost a tenant at most 1/32 of plain decoding's time, and one more trial of
    each request that runs; of what they gained before, they may lose two drafts' worth on top.
    Beside others a head that does not promise that gets no states of the target, either. A trial
    that pays halves the next rest. In a fusion only the model rests. There it is asked where the
    copies are so likely wrong, beside how likely they were where it was asked before, that what it
    has gained a second of late is more than what verifying them gives; what the copies alone would
    have brought is no gain of it.
    A cheap drafter whose drafts were refused several times in a row is asked less often; the more
    sequences share the step, the less often, because its own time delays them all. It begins a
    request where the requests before it, of the same tenant and method, have left off. A drafter
    that runs a model is tried in every request that has the steps to pay for what was lost before:
    then at once, or where it failed in the request before, after ``patience`` steps.

    Without a measured curve every node is verified, as ``fixed`` does.
    """

    weighs = True
    patience: int = parameter(16, 1, 1024, "refusals after which one node is tried")
    _method: str = field(default="", init=False)
    _learned: Experience = field(default_factory=Experience, repr=False)
    _begun: bool = False
    _refused: int = 0
    _pause: int = 0
    _owing: bool = False
    _unasked: int = 0
    _spent: float = 0.0
    _follow: float = HOPE
    _declined: int = 0
    _sleeps: bool = False
    _gained: float = 2.0
    _paid: float = 0.0
    _price: float = 0.0
    _copies: TokenTree = field(default=EMPTY, repr=False)
    _copied: float = 0.0
    _missed: float = 1.0
    _plain: float = 0.0

    def begin(self, method: str, needs: Needs) -> None:
        self._method = method

    def limit(self, seq: TokenSequence) -> int:
        self._spent = self._price = self._copied = 0.0
        self._copies = EMPTY
        self._plain = (seq.step_seconds(1) or 0.0) / (1 + seq.neighbours)
        if self._method and not self._begun:
            self._begun = True
            self._learned = seq.shared(f"auto budget {self._method}", Experience)
            self._refused = self._learned.refused
            self._rest_if_refused(seq)
            if self._learned.failed:
                self._gained, self._pause = 0.0, self.patience
                self._rest_model(self.patience)
            self._owing = True
            # Beside others a prompt goes without: reading all prompts first would delay them all.
            if seq.neighbours and seq.step_seconds(1) is not None:
                self.rest = max(self.rest, 1)
        if self.fused:
            self.asleep = self.asleep or self._due(seq)
            self._sleeps = self.asleep > 0
            self.asleep -= self._sleeps
        elif self.rest == 0:
            self.rest = self._due(seq)
        if self.rest > 0:
            self.rest -= 1
            return 0
        return self.count

    def asks(self, seq: TokenSequence, drafted: TokenTree) -> bool:
        if self._sleeps:
            return False
        base, asked = seq.step_seconds(1), super().asks(seq, drafted)
        if base is None:
            return asked
        nodes, price, rate = self._best(seq, drafted, base)
        first = self._learned.calibration.one(first_reach(drafted)) if len(drafted) else 0.0
        missed = 1.0 - first
        if self._paid > 0.0 and len(drafted):
            pays = missed * self._gained > self._missed * self._paid * rate
            self._unasked = 0 if pays else self._unasked + asked
            asked = pays or (asked and self._unasked % self.patience == 0)
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
            self._spent += seconds(len(leaves))
        return leaves

    def wants_states(self, seq: TokenSequence, seconds: float) -> bool:
        if seq.neighbours == 0:
            return True
        root = np.array([ROOT], np.int32)
        return self._begins(self._paying(seq, EMPTY, root, lambda rows: seconds) > 0)

    def least(self, seq: TokenSequence, seconds: float) -> float:
        # A level brings a node that takes a row of the verification, and has to be right. Those
        # that wait lose by it, too.
        base, some = seq.step_seconds(1), seq.step_seconds(1 + SOME)
        if base is None or some is None:
            return super().least(seq, seconds)
        row = (some - base) / SOME
        worth = 1.0 + max(self._learned.usual, 0.0) / some
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
        self._price = self._spent
        if len(tree) == 0 or tree.sampled:  # What was drawn decides nothing about its own length.
            return tree
        best, price, _ = self._best(seq, tree, base)
        self._refused = 0 if best else self._refused + 1
        self._learned.refused = 0 if best else self._learned.refused + 1
        if best == 0 and self._refused % self.patience == 0:
            best, price = 1, (seq.step_seconds(2) or base) - base
        else:
            self._rest_if_refused(seq)
        self._price += price - self._copied
        return tree.best(best)

    def observe(self, tree: TokenTree, verdict: Verdict) -> None:
        path = tree.follow(verdict.tokens[:-1])
        if len(tree):
            self._learned.calibration.update(tree.reach, path)
        if self._spent == 0:
            self._pay(1)
        elif self._plain > 0:
            self._judge(len(path) - len(self._copies.follow(verdict.tokens)))

    def charge(self, seconds: float, sunk: bool = False) -> None:
        if sunk:
            self._learned.owed = max(self._learned.owed, self._lost) + seconds
        else:
            self._spent += seconds
            self._price += seconds

    def rested(self, count: int) -> None:
        super().rested(count)
        self._pay(count)

    def _best(self, seq: TokenSequence, tree: TokenTree, base: float) -> tuple[int, float, float]:
        """How many nodes to verify, their price in seconds, and the tokens a second that gives."""
        corrected, expected = self._learned.calibration.one, 1.0 + OTHERS * seq.neighbours
        best, price, rate = 0, 0.0, expected / (self._spent + base)
        for nodes, reach in enumerate(sorted(tree.reach.tolist(), reverse=True), 1):
            expected += corrected(reach)
            seconds = seq.step_seconds(1 + nodes) or base
            if expected > rate * (self._spent + seconds):
                best, price, rate = nodes, seconds - base, expected / (self._spent + seconds)
        return best, price, rate

    def read(self) -> BudgetState:
        refusals = [self._refused, self._learned.refused, self.rest]
        known = self._learned.calibration.read()
        return BudgetState(known, refusals, self.patience, self._learned)

    def write(self, known: BudgetState) -> None:
        self._learned.calibration.write(known.calibration)
        self._refused, self._learned.refused, self.rest = known.refusals

    def _rest_if_refused(self, seq: TokenSequence) -> None:
        if self._refused >= HABIT:
            self.rest = min(self._refused // HABIT + seq.neighbours, self.patience)

    @property
    def _lost(self) -> float:
        """Seconds that the drafts of late took more than they gained."""
        return self._paid - self._gained * self._plain

    def _judge(self, accepted: int) -> None:
        """Whether a drafter that costs time has earned it of late; else it rests.

        Args:
            accepted: draft tokens, beyond those of copies that were there before it drafted.
        """
        self._learned.first += RECENT * ((accepted > 0) - self._learned.first)
        self._gained = MEMORY * self._gained + accepted
        self._paid = MEMORY * self._paid + self._price
        more, lost = self._price - accepted * self._plain, self._lost
        self._learned.owed = max(self._learned.owed + more, lost)
        self._learned.usual -= LONG * (more + self._learned.usual)
        self._learned.failed = lost > TRUST * max(self._learned.usual, 0.0)
        if not self._learned.failed:
            self._pause //= 2
            return
        self._pause = min(max(2 * self._pause, self.patience), 16 * self.patience)
        self._rest_model(self._pause)
        self._owing = True
        # The next trial is judged by what it brings itself, not by the past.
        self._gained = self._paid = 0.0

    def _begins(self, pays: bool) -> bool:
        """Whether a model drafts: where it pays, and after ``patience`` refusals in a row all the
        same, for what is known of its time and its drafts grows old. Else it rests, longer each
        time."""
        self._declined = 0 if pays else self._declined + 1
        if self._declined % self.patience == 0:
            return True
        rest = min(self._declined, self.patience)
        self._learned.first += FORGOTTEN * rest * (HOPE - self._learned.first)
        self._rest_model(rest)
        return False

    def _due(self, seq: TokenSequence) -> int:
        """Steps that pay, together with those of the neighbours, what was lost; 0 where that does
        not hold up this request, or not any more."""
        if not self._owing or self._plain == 0.0:
            return 0
        step = LOSS * self._plain * (1 + seq.neighbours)
        # Sums of many payments are off in their last bits.
        steps = math.ceil(max(self._learned.owed, 0.0) / step - 1e-6)
        self._owing = steps > 0
        return steps

    def _pay(self, count: int) -> None:
        """So many steps went without the model."""
        if self._learned.owed > 0:
            self._learned.owed = max(0.0, self._learned.owed - count * LOSS * self._plain)

    def _rest_model(self, steps: int) -> None:
        if self.fused:
            self.asleep = max(self.asleep, steps)
        else:
            self.rest = max(self.rest, steps)

    def _paying(self, seq: TokenSequence, tree: TokenTree, leaves: Nodes, seconds: Seconds) -> int:
        """How many of ``leaves`` (best first) to expand: all, one, or none.

        Looks several levels ahead, for t(K) has steps: the next node alone may not pay where the
        next four do. The first forward is judged by how often first tokens were right of late.
        """
        nodes, room = len(tree), self.count - len(tree)
        verify = seq.step_seconds(1 + nodes)
        if verify is None:
            return len(leaves)
        accepted = float(self._learned.calibration.of(tree.reach).sum())
        value = 1.0 + OTHERS * seq.neighbours + accepted
        spent = self._spent + verify
        reach = reach_of(tree, leaves)
        if nodes:  # The root is there.
            reach = self._learned.calibration.of(reach)
        best, chosen = value / spent, 0
        ahead = self._follow if nodes else self._learned.first
        for rows in {len(leaves), 1}:
            gain = 0.0
            for level in range(1, max(1, min(room // rows, 8)) + 1):
                gain += float(reach[:rows].sum()) * ahead * self._follow ** (level - 1)
                added = min(rows * level, max(room, 0))
                more = level * seconds(rows) + (seq.step_seconds(1 + nodes + added) or verify)
                rate = (value + gain) / (self._spent + more)
                if rate > best:
                    best, chosen = rate, rows
        return chosen
