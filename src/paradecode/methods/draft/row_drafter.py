"""Base class of drafters whose guesses are rows of the target's own forward, behind its draft."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from paradecode.core.decoder import TARGET, Forward, Reply, TokenSequence, Verdict
from paradecode.core.errors import InvalidInput
from paradecode.core.head import Head
from paradecode.core.logits import Logits
from paradecode.core.multi_step import StepsMade
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.methods.draft.acceptance import Odds
from paradecode.methods.draft.candidates import candidates
from paradecode.methods.draft.growth import grow
from paradecode.methods.draft.loop import Drafter, Scoring
from paradecode.methods.draft.model_free import RatedTree
from paradecode.methods.draft.needs import Needs
from paradecode.methods.draft.prompt_rows import (
    Counts,
    GuessRows,
    RowCost,
    new_odds,
    paying,
    root_only,
)
from paradecode.methods.parts import local_path, parameter

TRIAL = 32
"""Steps without prompt rows after they did not pay; then the root gets some as a trial. The number
doubles with each failed trial, up to 8 times."""


@dataclass(kw_only=True)
class RowDrafter(Drafter):
    """Drafts with *prompt rows*, which hang below the nodes of a verification and say what may
    follow them; those behind the last accepted token make the next draft.

    A node gets prompt rows by PPD's rule (arXiv 2405.18628): the chance that a verification ends
    there times what a level of guesses adds, with rates that are counted while decoding, and this
    machine's measured cost of rows. Under a budget that does not weigh costs, all rows that fit are
    hung, and the drafter never rests.

    Attributes:
        source: what has to be trained first.
        kinds: kinds of heads that the method runs.
    """

    needs = Needs(noise=True, all_rows=True, runs=(TARGET,), rests=True)
    source: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]

    head: str = local_path("folder of what the rows are made of")
    width: int = parameter(10, 1, 32, "candidates of each level")
    _seq: TokenSequence | None = field(default=None, init=False, repr=False)
    _limit: int = field(default=0, init=False, repr=False)
    _idle: int = field(default=0, init=False, repr=False)
    _tries: bool = field(default=False, init=False, repr=False)
    _rated: RatedTree | None = field(default=None, init=False, repr=False)
    _rows: GuessRows | None = field(default=None, init=False, repr=False)
    _cost: float = field(default=0.0, init=False, repr=False)
    _found: list[list[tuple[int, int]]] = field(default_factory=list, init=False, repr=False)
    _guesses: Logits | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.head:
            raise InvalidInput("head", "", f"name the folder of {self.source}")

    def levels(self, head: Head) -> int:
        """The most rows below a node."""
        raise NotImplementedError

    def cost(self, seq: TokenSequence, head: Head) -> RowCost:
        """What this method's prompt rows cost."""
        return RowCost()

    def rows(self, seq: TokenSequence, head: Head, counts: Counts) -> GuessRows:
        """The prompt rows of a verification: ``counts`` of them below the root and each node."""
        raise NotImplementedError

    def draft(self, seq: TokenSequence, limit: int) -> TokenTree:
        if self.rest > 0:
            self.rest -= 1
            return EMPTY
        key, levels = f"{self.kinds[0]} {self.head} {self.width}", self.levels(self._head(seq))
        odds = seq.shared(key, lambda: new_odds(levels, self.width))
        self._seq, self._limit, self._rated = seq, limit, RatedTree(odds)
        if self.offer.alone:
            self.offer.budget.charge(self._cost)
        self._cost, self._found = 0.0, []
        found = self._found
        for row in range(self._guesses.shape[0] if self._guesses is not None else 0):
            path = [level[0][0] for level in found]  # For penalties: the likeliest one.
            one = self._guesses.select([row])  # type: ignore[union-attr]
            _, ids, chances = candidates(seq, one, [path], self.width, None, self.offer.noise)
            likely = ids[0][chances[0] > 0].tolist()
            if not likely:  # All are NaN: the rows' numbers have overflowed.
                break
            ranked = enumerate(likely, row * self.width)
            found.append([(token, kind) for kind, token in ranked])
        if found:
            grow(self._rated, limit, len(found), lambda path: found[len(path)])
        return self._rated.tree()

    def score(self, forward: Forward) -> Scoring:
        if self._seq is None or self._rated is None:  # The budget wants no draft now.
            return (yield forward)
        seq, head, odds = self._seq, self._head(self._seq), self._rated.odds
        levels, cost = self.levels(head), self.cost(seq, head)
        budget = self.offer.budget
        counts = paying(seq, forward, odds, levels, self.width, self._limit, cost, budget)
        if counts.any() or not budget.weighs:
            self._idle, self._tries = 0, False
        elif self._tries:
            counts, self._tries = root_only(seq, forward, levels), False
        else:
            self._idle = min(max(2 * self._idle, TRIAL), 8 * TRIAL)
            self.rest, self._tries = self._idle - 1, True
        self._rows = self.rows(seq, head, counts)
        verified = len(forward.tokens) + len(forward.tree)
        self._cost = cost.seconds(seq, verified, int(self._rows.counts.sum()))
        return (yield from self._rows.score(forward))

    def observe(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        if self._rated is not None:
            self._book(self._rated.odds, verdict)
        self._guesses = self._rows.behind(verdict.rows[-1]) if self._rows else None
        self._seq = self._rated = self._rows = None

    def _book(self, odds: Odds, verdict: Verdict) -> None:
        """Count which guesses were right, also those that were never verified."""
        for level, token in zip(self._found, verdict.tokens):
            for guess, kind in level:
                odds.update(kind, int(guess == token), 1)
            if all(guess != token for guess, _ in level):
                break

    def wait(self, seq: TokenSequence) -> None:
        self.rest = max(0, self.rest - 1)
        self._waste()

    def rested(self, seq: TokenSequence, made: StepsMade) -> None:
        super().rested(seq, made)
        self._waste()

    def _waste(self) -> None:
        """Drop the last rows' guesses, because they stand behind an earlier token."""
        if self.offer.alone and self._cost > 0:
            self.offer.budget.charge(self._cost, sunk=True)
        self._cost, self._guesses = 0.0, None

    def _head(self, seq: TokenSequence) -> Head:
        found = seq.head(self.head)
        if found.kind not in self.kinds:
            raise InvalidInput("head", found.kind, f"name the folder of {self.source}")
        return found
