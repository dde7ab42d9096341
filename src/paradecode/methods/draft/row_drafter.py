"""Base class of drafters whose guesses are extra rows of the target's own forward pass.

A row is one position of a forward. The extra rows, called *prompt rows*, come after the draft's
nodes in a verification.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import TARGET, Forward, Reply, TokenSequence, Verdict
from paradecode.core.errors import InvalidInput
from paradecode.core.head import Head
from paradecode.core.logits import Logits
from paradecode.core.multi_step import StepsMade
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.methods.draft.acceptance import Odds
from paradecode.methods.draft.budgets.auto import OTHERS
from paradecode.methods.draft.candidates import candidates
from paradecode.methods.draft.contracts import Budget, Drafter, Needs, Scoring
from paradecode.methods.draft.growth import grow
from paradecode.methods.draft.model_free import RatedTree
from paradecode.methods.parts import local_path, parameter

LEAST = 0.01
"""The least cost of a row in tokens, used if a smaller cost was measured."""
Counts = NDArray[np.int64]
"""Array [1 + nodes]: the number of prompt rows below the root, and below each node."""


def new_odds(levels: int, width: int) -> Odds:
    """Return acceptance estimates for guesses before any verification.

    The guess of rank r at level k has the kind of evidence k * width + r.
    """
    return Odds([0.3 * 0.7**k * 0.5**r for k in range(levels) for r in range(width)])


def gains(odds: Odds, levels: int, width: int, price: NDArray[np.float64]) -> list[float]:
    """Return the expected number of tokens that each further level of guesses adds to a draft.

    The draft is assumed to have the most probable paths, as many as gain most.

    Args:
        odds: acceptance estimates by the kinds of evidence of :func:`new_odds`.
        levels, width: number of levels, and of guesses at each level.
        price: [1 + most nodes], cost of verifying 0, 1, ... nodes, in tokens.
    """
    count = len(price) - 1
    paths, every, brought = np.ones(1), np.empty(0), [0.0]
    for level in range(levels):
        rates = np.array([odds.of(level * width + rank) for rank in range(width)])
        paths = -np.sort(-np.outer(paths, rates).ravel())[:count]
        every = -np.sort(-np.concatenate([every, paths]))[:count]
        net = np.cumsum([0.0, *every]) - price[: len(every) + 1]
        brought.append(max(float(net.max()), brought[-1]))
    # A level needs the levels before it, so its gain must not be larger than their gains.
    return list(accumulate(np.diff(brought).tolist(), min))


def hung(
    tree: TokenTree, gains: list[float], most: Counts, room: int,
    worth: Callable[[float, int], NDArray[np.float64]] | None,
) -> Counts:  # fmt: skip
    """Return the number of prompt rows for each node of a verification, the root first.

    A prompt row is useful only if the verification ends at the node above it. Its expected gain is
    therefore the probability of this, times the gain of its level for the next draft.

    Args:
        gains: gain of each level in tokens; see :func:`gains`.
        most: [1 + nodes], the most prompt rows below the root and below each node.
        room: the most prompt rows in all.
        worth: function from the expected tokens of this step and a number n to the cost of 0, 1,
            ... n rows, in tokens. None takes all rows that fit.
    """
    reach = np.concatenate([[1.0], tree.reach])
    ends = reach.copy()
    np.subtract.at(ends, tree.parents + 1, tree.reach)
    promises = np.outer(np.maximum(ends, 0.0), gains)
    promises[np.arange(len(gains)) >= most[:, None]] = -1.0
    order = np.argsort(-promises.ravel(), kind="stable")[:room]
    order = order[promises.ravel()[order] >= (0.0 if worth is None else LEAST)]
    if worth is not None:
        brought = np.concatenate([[0.0], np.cumsum(promises.ravel()[order])])
        order = order[: int((brought - worth(float(tree.reach.sum()), len(order))).argmax())]
    counts: Counts = np.bincount(order // len(gains), minlength=len(reach))
    return counts


@dataclass(frozen=True)
class RowCost:
    """The cost of prompt rows.

    Attributes:
        share: cost of a prompt row as a share of an ordinary row's cost.
        beside: seconds that a verification takes longer if it has any prompt row.
    """

    share: float = 1.0
    beside: float = 0.0

    def seconds(self, seq: TokenSequence, rows: int, count: int) -> float:
        """Return the seconds that ``count`` prompt rows add to ``rows`` rows; 0 if not measured."""
        more = (seq.step_seconds(rows + count) or 0.0) - (seq.step_seconds(rows) or 0.0)
        return self.share * more + self.beside * (count > 0)


def paying(
    seq: TokenSequence, forward: Forward, odds: Odds, levels: int, width: int, count: int,
    cost: RowCost, budget: Budget,
) -> Counts:  # fmt: skip
    """Return the prompt rows of a verification that are worth their measured cost on this machine.

    If the budget does not weigh costs, or nothing was measured, all rows that fit are taken.

    Args:
        odds, width: see :func:`gains`.
        levels: the most prompt rows of a node.
        count: the most nodes of the next draft.
    """
    rows, room = len(forward.tokens) + len(forward.tree), _room(seq, forward)
    base, one = budget.step_seconds(seq, rows), budget.step_seconds(seq, 1)
    alone, price = 1.0 + OTHERS * seq.neighbours, np.zeros(1 + count)
    if one is not None:
        price = np.array([(seq.step_seconds(1 + n) or one) / one - 1.0 for n in range(1 + count)])

    def worth(brought: float, most: int) -> NDArray[np.float64]:
        more = np.array([cost.seconds(seq, rows, n) for n in range(most + 1)])
        return more / (base or 1.0) * (alone + brought)

    most, promised = _most(seq, forward.tree, levels), gains(odds, levels, width, alone * price)
    return hung(forward.tree, promised, most, room, None if base is None else worth)


def root_only(seq: TokenSequence, forward: Forward, levels: int) -> Counts:
    """Return all prompt rows that fit below the root, and none below other nodes."""
    counts = np.zeros(1 + len(forward.tree), np.int64)
    counts[0] = min(_most(seq, forward.tree, levels)[0], _room(seq, forward))
    return counts


def _room(seq: TokenSequence, forward: Forward) -> int:
    return max(seq.scratch - len(forward.tree), 0)


def _most(seq: TokenSequence, tree: TokenTree, levels: int) -> Counts:
    """Return the most prompt rows below each node whose guesses still fit in the output."""
    depths = np.concatenate([[0], tree.depths])
    # The last position is for the token that the verification adds.
    return np.clip(seq.room - 2 - depths, 0, levels).astype(np.int64)


@dataclass
class GuessRows:
    """Runs the prompt rows of one verification, and stores their guesses.

    Args:
        counts: number of prompt rows below the root and below each node, the root first.
    """

    counts: Counts
    _said: Logits | None = field(default=None, init=False)

    def score(self, forward: Forward) -> Scoring:
        """Run a verification with the prompt rows after its tree; return the reply without them."""
        count, real = int(self.counts.sum()), 1 + len(forward.tree)
        if count == 0:
            return (yield forward)
        reply = yield from self.run(forward, self._wider(forward.tree))
        self._said = reply.logits.select(list(range(real, real + count)))
        rows = len(forward.tokens) + len(forward.tree)
        hidden = {layer: states[:rows] for layer, states in reply.hidden.items()}
        return Reply(reply.logits.select(list(range(real))), hidden)

    def run(self, forward: Forward, tree: TokenTree) -> Scoring:
        """Run a verification of ``tree``, whose last rows are the prompt rows."""
        raise NotImplementedError

    @property
    def numbers(self) -> NDArray[np.int64]:
        """The distance of each prompt row from its node, from 0 on."""
        return np.concatenate([np.arange(count) for count in self.counts])

    def behind(self, row: int) -> Logits | None:
        """Return the guesses below the root (``row`` 0) or below node ``row`` - 1.

        The row nearest to the node comes first. The result is None if there are no such rows.
        """
        begin, count = int(self.counts[:row].sum()), int(self.counts[row])
        if self._said is None or count == 0:
            return None
        return self._said.select(list(range(begin, begin + count)))

    def _wider(self, tree: TokenTree) -> TokenTree:
        nodes = np.repeat(np.arange(len(self.counts)) - 1, self.counts)  # -1 is ROOT.
        places = np.arange(len(nodes)) + len(tree)
        parents = np.where(self.numbers == 0, nodes, places - 1)
        return TokenTree(
            np.concatenate([tree.tokens, np.full(len(nodes), -1, np.int32)]),
            np.concatenate([tree.parents, parents.astype(np.int32)]),
        )


@dataclass
class PromptRows(GuessRows):
    """Prompt rows whose inputs are trained prompt tokens.

    Args:
        prompts: float32 [m, hidden size], the embeddings of the prompt tokens.
    """

    prompts: NDArray[np.float32]

    def run(self, forward: Forward, tree: TokenTree) -> Scoring:
        return (yield replace(forward, tree=tree, given=self.prompts[self.numbers]))


TRIAL = 32
"""Number of steps without prompt rows after a step in which they cost more than they gained.

After these steps the root gets some prompt rows as a trial. Each failed trial doubles the number,
up to eight times TRIAL.
"""


@dataclass(kw_only=True)
class RowDrafter(Drafter):
    """Base class of drafters with *prompt rows*, extra rows that guess the tokens after each node.

    The guesses of the rows below the last accepted token make the next draft.

    A node gets prompt rows by PPD's rule (arXiv 2405.18628): the probability that a verification
    ends at the node, times the gain of a level of guesses. The rates are counted while decoding,
    and the cost of rows is measured on this machine. Under a budget that does not weigh costs, a
    node gets all rows that fit, and the drafter never pauses.

    Attributes:
        source: the thing that must be trained first, for error messages.
        kinds: kinds of heads that the method runs.
    """

    needs = Needs(noise=True, all_rows=True, runs=(TARGET,), rests=True)
    source: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]

    head: str = local_path("folder of what the rows are made of")
    width: int = parameter(10, 1, 32, "number of candidates of each level")
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
            raise InvalidInput("head", "", f"write head=FOLDER, the folder of {self.source}")

    def levels(self, head: Head) -> int:
        """Return the most prompt rows of a node."""
        raise NotImplementedError

    def cost(self, seq: TokenSequence, head: Head) -> RowCost:
        """Return the cost of this method's prompt rows."""
        return RowCost()

    def rows(self, seq: TokenSequence, head: Head, counts: Counts) -> GuessRows:
        """Return a verification's prompt rows, ``counts`` of them below the root and each node."""
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
            path = [level[0][0] for level in found]  # The best path, for penalties.
            one = self._guesses.select([row])  # type: ignore[union-attr]
            _, ids, chances = candidates(seq, one, [path], self.width, None, self.offer.noise)
            likely = ids[0][chances[0] > 0].tolist()
            if not likely:  # All are NaN, because the row has overflowed.
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
        """Record which guesses were right, including guesses that were never verified."""
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
        """Drop the last rows' guesses, because a token was committed after they were made."""
        if self.offer.alone and self._cost > 0:
            self.offer.budget.charge(self._cost, sunk=True)
        self._cost, self._guesses = 0.0, None

    def _head(self, seq: TokenSequence) -> Head:
        found = seq.head(self.head)
        if found.kind not in self.kinds:
            raise InvalidInput("head", found.kind, f"name the folder of {self.source}")
        return found
