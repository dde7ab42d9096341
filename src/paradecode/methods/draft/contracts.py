"""Interfaces of the draft-and-verify loop: drafters, budgets, and their messages to each other.

A budget is a rule that decides how many draft tokens are worth drafting and verifying now.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Apply, Forward, Reply, Request, TokenSequence, Verdict
from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Logits
from paradecode.core.multi_step import BudgetState, MultiStep, StepsMade
from paradecode.core.tree import ROOT, Mode, TokenTree
from paradecode.core.tree_builder import TreeBuilder
from paradecode.methods.draft.greedy_draws import Draws


@dataclass(frozen=True)
class Needs:
    """Declares a drafter's needs and abilities. The loop reads it once, when a request begins.

    Attributes:
        all_rows: ``observe`` gets every row of a verification, also the rows of tokens that a
            constraint or another drafter of a fusion added to the tree.
        noise: the drafter can rank tokens with the random numbers with which the target will
            sample. The loop allows this (``offer.noise``) only under the coupled verifier.
        draws: the drafter can sample its tree from a distribution q and store q, for verifiers that
            test p / q (``offer.draws``). Other drafters count as choosing tokens without chance.
        levels: the drafter grows its tree with a model, level by level. Before each level it asks
            ``offer.budget`` whether the level is worth its time.
        heads: the drafter runs a trained head. The head's time is spent before its tree can be
            judged.
        runs: names of the models whose uncommitted rows of the K/V cache the drafter uses. Only one
            drafter of a fusion may use a model's uncommitted rows.
        fuses: the drafter may be one of the drafters of a fusion.
        rests: in steps without a draft the drafter needs only the hidden states of its ``hidden``
            layers. A backend may then make several such steps in one call (see ``Drafter.rested``).
    """

    all_rows: bool = False
    noise: bool = False
    draws: bool = False
    levels: bool = False
    heads: bool = False
    runs: tuple[str, ...] = ()
    fuses: bool = True
    rests: bool = False

    @property
    def costs(self) -> bool:
        """True if a draft takes the time of a model or of a head."""
        return self.levels or self.heads


# Types of a budget's arguments and results.

Nodes = NDArray[np.int32]
Estimates = NDArray[np.float32]
"""Array [F, W]: acceptance probabilities of the W best continuations of each of F nodes."""
Marks = NDArray[np.bool_]
Seconds = Callable[[int], float]
"""Function from a number of rows to the seconds of a draft forward pass with that many rows.

It returns 0 if no time was measured.
"""

LAST = -1
"""Index of the layer whose outputs budgets read: the last layer, before the final norm."""


@dataclass(frozen=True, eq=False)
class DraftRows:
    """The results of a draft forward pass whose inputs were the tokens of F nodes.

    Attributes:
        model: name of the model that drafts.
        logits: F rows; row f scores the tokens that may follow node f.
        states: float32 [F, H], outputs of the last layer that ran, before the final norm.
    """

    model: str
    logits: Logits
    states: NDArray[np.float32]


@dataclass
class Budget:
    """Decides how large drafts are. Each request has its own object, which may learn.

    The loop calls ``limit``, ``cut`` and ``observe`` for every drafter. A drafter that runs a model
    spends time on each level of its tree. It therefore also calls ``expand`` before each forward
    pass and ``grow`` after it.

    This base class keeps the ``count`` most promising nodes: the nodes with the largest *reach*.
    The reach of a node is the probability that it and its ancestors are accepted. While a tree
    grows, a node is expanded as long as a child of it could still be one of these nodes. By the
    drafter's estimates the result is the best tree of that size (the rule of EAGLE-2).

    Subclasses override the decisions that they make differently. Their settings are fields declared
    with ``parameter`` and similar functions.

    Attributes:
        weighs: True if a draft must save more time than it takes. If False, as in ``fixed``, a
            drafter ignores its own rules that skip drafts because of their cost.
        count: the method's ``num_speculative_tokens``: the most nodes of a draft.
        reads_draft: True if :meth:`see_draft` gets the results of each draft forward.
        reads_target: True if :meth:`see_target` gets each verification.
        networks: True if the budget runs networks, in :meth:`prepare`.
        fused: True if the budget serves a fusion in which some drafters run a model and others do
            not. It then decides separately when the model drafters draft.
        rest: number of coming steps in which nothing is drafted.
        asleep: number of coming steps in which the model drafters of a fusion do not draft.
    """

    weighs: ClassVar[bool] = False
    count: int
    reads_draft: bool = field(default=False, init=False, repr=False)
    reads_target: bool = field(default=False, init=False, repr=False)
    networks: bool = field(default=False, init=False, repr=False)
    fused: bool = field(default=False, init=False, repr=False)
    rest: int = field(default=0, init=False, repr=False)
    asleep: int = field(default=0, init=False, repr=False)

    def begin(self, method: str, needs: Needs) -> None:
        """Prepare for a request; called once, before its first step.

        Args:
            method: name of the method.
            needs: what its drafter needs.

        Raises:
            InvalidInput: if this budget cannot serve such a drafter.
        """

    def limit(self, seq: TokenSequence) -> int:
        """Return the most nodes that a draft may have at this step; 0 asks for no draft."""
        return self.count

    def asks(self, seq: TokenSequence, drafted: TokenTree) -> bool:
        """Decide whether a fusion's model drafts after drafters without a model have drafted.

        The base class says yes if the first tokens in ``drafted`` are together more probably wrong
        than right.
        """
        return first_reach(drafted) < 0.5

    def expand(self, seq: TokenSequence, tree: TokenTree, leaves: Nodes, seconds: Seconds) -> Nodes:
        """Return the nodes among the newest ones, ``leaves``, that the next draft forward extends.

        An empty result ends the draft. Before the first forward pass ``leaves`` is [ROOT].
        """
        return leaves[reach_of(tree, leaves) > self._least_reach(tree)]

    def step_seconds(self, seq: TokenSequence, rows: int) -> float | None:
        """Return the seconds of a step of ``rows`` rows, for drafters that weigh cost and gain.

        The result is None if nothing was measured, or if drafts are wanted whatever they cost.
        """
        return seq.step_seconds(rows) if self.weighs else None

    def least(self, seq: TokenSequence, seconds: float) -> float:
        """Return the least reach for which a node of a head's draft is expanded.

        A head drafts all its levels in one call, so :meth:`expand` cannot decide in between.

        Args:
            seconds: time that the head takes for one level.
        """
        step = self.step_seconds(seq, 1)
        return seconds / step if step else 0.0

    def wants_states(self, seq: TokenSequence, seconds: float) -> bool:
        """Decide whether a head gets hidden states of the coming rows if no draft is due.

        Args:
            seconds: time that a draft of the head takes.
        """
        return True

    def grow(
        self, seq: TokenSequence, tree: TokenTree, parents: Nodes, estimates: Estimates
    ) -> Marks:
        """Choose the candidates that become nodes: bool [F, W], True for chosen candidates.

        Candidate (f, w) is the w-th best continuation of node ``parents[f]``. It is accepted with
        probability ``estimates[f, w]``, given that its parent is.
        """
        offered = reach_of(tree, parents)[:, None] * estimates
        order = np.argsort(-np.concatenate([tree.reach, offered.ravel()]), kind="stable")
        kept = np.zeros(len(order), bool)
        kept[order[: self.count]] = True
        return kept[len(tree) :].reshape(offered.shape) & (offered > 0)

    def drawing(self, tree: TreeBuilder, limit: int) -> Draws | None:
        """Return the object that samples a tree of at most ``limit`` nodes, or None.

        None means that the drafter samples each level as :meth:`expand` and :meth:`grow` decide.
        """
        return None

    def see_draft(self, seq: TokenSequence, tree: TokenTree, nodes: Nodes, rows: DraftRows) -> None:
        """Read the results of a draft forward at ``nodes``, before their children are added."""

    def prepare(self, seq: TokenSequence, tree: TokenTree) -> Generator[Apply, Any, None]:
        """Run the networks that the next decision about ``tree`` needs.

        This is called after :meth:`see_draft`, before :meth:`expand` of a tree that has nodes, and
        before :meth:`cut`.
        """
        return
        yield  # Makes it a generator.

    def see_target(
        self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict
    ) -> None:
        """Read a verification of ``tree``; ``reply`` has the hidden states of layer ``LAST``."""

    def charge(self, seconds: float, sunk: bool = False) -> None:
        """Record seconds of drafting that :meth:`expand` did not decide about.

        Args:
            sunk: True if no draft is judged by these seconds, because they were spent on reading
                the prompt or on rows that were not used.
        """

    def cut(self, seq: TokenSequence, tree: TokenTree) -> TokenTree:
        """Return the part of a draft that is worth verifying."""
        return tree.capped(self.count)

    def observe(self, tree: TokenTree, verdict: Verdict) -> None:
        """Learn from a verification; called at every step, also with an empty tree."""

    def rested(self, count: int) -> None:
        """Record ``count`` steps that a backend made without a draft."""
        self.rest = max(0, self.rest - count)
        self.asleep = max(0, self.asleep - count)

    def read(self) -> BudgetState | None:
        """Return the state with which a backend decides in this budget's place.

        A backend does so while it makes several steps. The result is None if no backend can do so.
        Only ``fixed`` and ``auto`` return a state.
        """
        return None

    def write(self, known: BudgetState) -> None:
        """Continue from a state of :meth:`read` that a backend has updated."""

    def _least_reach(self, tree: TokenTree) -> float:
        """Return the reach that a new node must exceed to be one of the best ``count``."""
        if len(tree) < self.count:
            return 0.0
        return float(np.sort(tree.reach)[-self.count]) if self.count else np.inf


def reach_of(tree: TokenTree, nodes: Nodes) -> NDArray[np.float64]:
    """Return float64 [F]: the probability that each node and all its ancestors are accepted.

    It is 1 for the root.
    """
    return np.array([1.0 if node == ROOT else float(tree.reach[node]) for node in nodes])


def first_reach(tree: TokenTree) -> float:
    """Return the probability that one of the tree's first tokens is accepted."""
    return min(float(tree.reach[tree.parents == ROOT].sum()), 1.0)


def needs_levels(field: str, path: str, needs: Needs) -> None:
    """Raise InvalidInput if the drafter has no model that gives hidden states."""
    if not needs.levels:
        fix = "it reads a draft model's states: use it with a method that drafts with a model"
        raise InvalidInput(field, path, fix)


MAX_DRAFT = 64
"""The largest number of draft tokens in one forward pass."""

Proposal = Generator["Request | list[Request]", Any, TokenTree]
"""A generator that returns the drafted tree.

Before that, it may yield requests such as forward passes of a draft model.
"""
Scoring = Generator["Forward | Apply", Any, Reply]
"""A generator that runs a verification and returns its reply.

It may run the layers in several parts, with networks between them that read the hidden states.
"""


@dataclass(frozen=True)
class Offer:
    """The loop's message to a drafter at the beginning of a request.

    Attributes:
        budget: decides how large drafts are.
        noise: True if the drafter may use the random numbers that ``Needs.noise`` describes.
        draws: the mode in which the verifier expects the tree to be sampled; None for a tree that
            is not sampled.
        alone: True if no other drafter adds nodes to the tree.
    """

    budget: Budget
    noise: bool = False
    draws: Mode | None = None
    alone: bool = True


class Drafter:
    """Proposes draft tokens. Each request has its own object, a dataclass, which may keep state.

    Fields declared with ``parameter``, ``choice`` and similar functions are settings. A subclass
    implements :meth:`draft`, or :meth:`propose` if it runs a model.

    Attributes:
        needs: the drafter's needs from the loop; a property if they depend on settings.
        hidden: indices of the layers whose outputs the next reply must have; may change at each
            step.
        rest: number of coming steps without a draft, by the drafter's own decision. Like
            ``Budget.rest``, it counts down in :meth:`propose`, or in :meth:`rested`.
        whole: True if the proposed tree must be verified unchanged: no budget cuts it, and nothing
            is added. This is for rows that serve later drafts more than this one.
        offer: the loop's message at the beginning of the request.
    """

    needs: Needs = Needs()
    hidden: tuple[int, ...] = ()
    rest: int = 0
    whole: bool = False
    offer: Offer = Offer(Budget(MAX_DRAFT))

    def begin(self, offer: Offer) -> None:
        """Store the loop's offer; called once, before the first step."""
        self.offer = offer

    def check(self, seq: TokenSequence) -> None:
        """Raise InvalidInput if no draft can be made for a request. Called before its steps."""

    def draft(self, seq: TokenSequence, limit: int) -> TokenTree:
        """Return at most ``limit`` nodes that may follow ``seq.tokens``; EMPTY for no draft."""
        raise NotImplementedError

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        """Draft like :meth:`draft`; this method may also yield requests and get their replies."""
        return self.draft(seq, limit)
        yield  # Makes it a generator.

    def wait(self, seq: TokenSequence) -> None:
        """Called instead of :meth:`propose` in a step without a draft. The default does nothing."""

    def score(self, forward: Forward) -> Scoring:
        """Run a verification, or the rest of one, and return the reply for all its rows."""
        return (yield forward)

    def observe(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        """Learn from a verification, rejected nodes included, before its tokens are committed."""

    def rested(self, seq: TokenSequence, made: StepsMade) -> None:
        """Learn from steps that a backend made without a draft; their tokens are committed already.

        This is called instead of :meth:`observe`, for drafters with ``Needs.rests``.
        """
        self.rest = max(0, self.rest - made.count)

    def multi_step(self, seq: TokenSequence) -> MultiStep | None:
        """Return the settings with which a backend drafts in the drafter's place, or None."""
        return None
