"""What the loop of draft-and-verify methods asks of a drafter and of a budget.

A budget is a rule that says how many draft tokens are worth drafting and verifying now.
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
    """What a drafter needs and does; the loop reads it once, when a request begins.

    Attributes:
        all_rows: ``observe`` gets every row of a verification, also those of tokens that a
            constraint, or another drafter of a fusion, added to the tree.
        noise: the drafter can guess with the noise that the target's own draw will see. The loop
            allows it (``offer.noise``) under the coupled verifier only.
        draws: the drafter can draw its tree from a distribution q and keep q, for verifiers that
            test p / q (``offer.draws``). Trees of other drafters count as chosen by a rule.
        levels: the drafter grows its tree with a model, level by level, and asks ``offer.budget``
            before each level whether another one pays.
        heads: the drafter runs a trained head, whose time is spent before its tree can be judged.
        runs: models whose tentative rows it uses. Only one drafter of a fusion may use a model's.
        fuses: the drafter may be a part of a fusion.
        rests: in steps without a draft the drafter needs only the states of its ``hidden``
            layers, so a backend may make several such steps in one call (``rested``).
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
        """Whether its drafts cost the time of a model or of a head."""
        return self.levels or self.heads


# What a budget is: a rule that says how many draft tokens are worth drafting and verifying now.

Nodes = NDArray[np.int32]
Estimates = NDArray[np.float32]
"""[F, W], acceptance estimates of the W best continuations of F nodes."""
Marks = NDArray[np.bool_]
Seconds = Callable[[int], float]
"""Rows -> seconds of a draft forward over so many rows; 0 when it was not measured."""

LAST = -1
"""The layer whose outputs budgets read: the last one, before the final norm."""


@dataclass(frozen=True, eq=False)
class DraftRows:
    """The results of a draft forward at F nodes, whose tokens were its input.

    Attributes:
        model: name of the model that drafts.
        logits: F rows, each about what follows a node.
        states: float32 [F, H], outputs of the last layer that ran, before the norm.
    """

    model: str
    logits: Logits
    states: NDArray[np.float32]


@dataclass
class Budget:
    """Decides how large drafts are. One object a request, so it may learn from verifications.

    ``limit``, ``cut`` and ``observe`` serve every drafter. A drafter that runs a model pays for
    each level of its tree, so it also asks ``expand`` before each forward and ``grow`` after it.

    This base class keeps the ``count`` most promising nodes. While a tree grows, a node is expanded
    as long as a child of it could still be among them. The result is the best tree of that size for
    the drafter's estimates (the rule of EAGLE-2). Subclasses override what they decide otherwise;
    their settings are fields declared with ``parameter`` and the like.

    Attributes:
        weighs: whether drafts have to earn their time. If not, as with ``fixed``, a drafter drops
            its own rules that avoid drafts because of their cost.
        count: the method's ``num_speculative_tokens``.
        reads_draft: whether :meth:`see_draft` gets the rows of each draft forward.
        reads_target: whether :meth:`see_target` gets each verification.
        networks: whether the budget runs networks, in :meth:`prepare`.
        fused: whether it serves a fusion in which only some parts run a model; it then decides
            about these parts separately.
        rest: number of coming steps without a draft.
        asleep: number of coming steps in which the parts of a fusion that run a model rest.
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
        """Called once, before the first step, with the method's name and its drafter's needs.

        Raises:
            InvalidInput: if this budget cannot serve such a drafter.
        """

    def limit(self, seq: TokenSequence) -> int:
        """The most nodes that a draft may have at this step; 0 asks for no draft."""
        return self.count

    def asks(self, seq: TokenSequence, drafted: TokenTree) -> bool:
        """Whether, in a fusion, a model's forward pays beside what was drafted without it.

        By default it does where every first token is more likely wrong than right.
        """
        return first_reach(drafted) < 0.5

    def expand(self, seq: TokenSequence, tree: TokenTree, leaves: Nodes, seconds: Seconds) -> Nodes:
        """The newest nodes that get a row in one more draft forward; empty to stop.

        Before the first forward ``leaves`` is [ROOT].
        """
        return leaves[reach_of(tree, leaves) > self._least_reach(tree)]

    def step_seconds(self, seq: TokenSequence, rows: int) -> float | None:
        """Seconds of a step with so many rows, for a drafter that weighs whether its drafts pay.

        None where nothing was measured, and where drafts are wanted whatever they cost.
        """
        return seq.step_seconds(rows) if self.weighs else None

    def least(self, seq: TokenSequence, seconds: float) -> float:
        """The reach that a node of a head's draft must have to be expanded.

        A head drafts level by level in one call.

        Args:
            seconds: time of a level.
        """
        step = self.step_seconds(seq, 1)
        return seconds / step if step else 0.0

    def wants_states(self, seq: TokenSequence, seconds: float) -> bool:
        """Whether a head gets the target's states of the coming rows although no draft is asked
        for.

        Args:
            seconds: time of its drafts.
        """
        return True

    def grow(
        self, seq: TokenSequence, tree: TokenTree, parents: Nodes, estimates: Estimates
    ) -> Marks:
        """bool [F, W]: entry (f, w) says that candidate (f, w) becomes a node.

        Candidate (f, w) is the w-th best continuation of node ``parents[f]`` and is accepted with
        probability ``estimates[f, w]``, given that its parent is.
        """
        offered = reach_of(tree, parents)[:, None] * estimates
        order = np.argsort(-np.concatenate([tree.reach, offered.ravel()]), kind="stable")
        kept = np.zeros(len(order), bool)
        kept[order[: self.count]] = True
        return kept[len(tree) :].reshape(offered.shape) & (offered > 0)

    def drawing(self, tree: TreeBuilder, limit: int) -> Draws | None:
        """The object that draws a tree of at most ``limit`` nodes; None draws level by level as
        it grows."""
        return None

    def see_draft(self, seq: TokenSequence, tree: TokenTree, nodes: Nodes, rows: DraftRows) -> None:
        """Look at what a draft forward computed at ``nodes``, before their children are grown."""

    def prepare(self, seq: TokenSequence, tree: TokenTree) -> Generator[Apply, Any, None]:
        """Run the networks that the next decision about ``tree`` needs.

        Called after :meth:`see_draft`, before :meth:`expand` (of a tree that has nodes), and
        before :meth:`cut`.
        """
        return
        yield  # Makes it a generator.

    def see_target(
        self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict
    ) -> None:
        """Look at a verification of ``tree``; ``reply`` has the states of layer ``LAST``."""

    def charge(self, seconds: float, sunk: bool = False) -> None:
        """Book the seconds of a draft that :meth:`expand` was not asked about.

        Args:
            sunk: no draft is judged by these seconds, because they were for reading the prompt, or
                for rows that were not used.
        """

    def cut(self, seq: TokenSequence, tree: TokenTree) -> TokenTree:
        """The part of a draft that is worth verifying."""
        return tree.capped(self.count)

    def observe(self, tree: TokenTree, verdict: Verdict) -> None:
        """Learn from a verification; called at every step, with an empty tree as well."""

    def rested(self, count: int) -> None:
        """Book so many steps that a backend made without a draft."""
        self.rest = max(0, self.rest - count)
        self.asleep = max(0, self.asleep - count)

    def read(self) -> BudgetState | None:
        """The state with which a backend decides for this budget during several steps.

        None if no backend can, which is so for all budgets but ``fixed`` and ``auto``.
        """
        return None

    def write(self, known: BudgetState) -> None:
        """Continue from a state that :meth:`read` gave and that several steps have changed."""

    def _least_reach(self, tree: TokenTree) -> float:
        """The reach that a new node must exceed to be among the best ``count``."""
        if len(tree) < self.count:
            return 0.0
        return float(np.sort(tree.reach)[-self.count]) if self.count else np.inf


def reach_of(tree: TokenTree, nodes: Nodes) -> NDArray[np.float64]:
    """float64 [F]: probability that each node is accepted; 1 for the root."""
    return np.array([1.0 if node == ROOT else float(tree.reach[node]) for node in nodes])


def first_reach(tree: TokenTree) -> float:
    """Probability that one of the tree's first tokens is accepted."""
    return min(float(tree.reach[tree.parents == ROOT].sum()), 1.0)


def needs_levels(field: str, path: str, needs: Needs) -> None:
    """Raise InvalidInput unless the drafter grows its tree with a model, whose states can be
    read."""
    if not needs.levels:
        fix = "it reads a draft model's states: use it with a method that drafts with a model"
        raise InvalidInput(field, path, fix)


MAX_DRAFT = 64
"""The most draft tokens in one forward."""

Proposal = Generator["Request | list[Request]", Any, TokenTree]
"""A drafter may yield requests of its own, such as a draft model's forwards, before it returns a
tree."""
Scoring = Generator["Forward | Apply", Any, Reply]
"""A verification may run in parts, with networks between them that read their states."""


@dataclass(frozen=True)
class Offer:
    """What the loop gives a drafter; see :class:`Needs` for ``noise`` and ``draws``.

    ``draws`` is the way in which its tree is drawn, if it is drawn; it is the one that the verifier
    is made for. ``alone`` says that no other drafter adds to its trees.
    """

    budget: Budget
    noise: bool = False
    draws: Mode | None = None
    alone: bool = True


class Drafter:
    """Proposes draft tokens. A dataclass; each request has its own object, which may remember.

    Fields declared with ``parameter``, ``choice`` and the like are settings. Write :meth:`draft`,
    or :meth:`propose` if it runs a model.

    Attributes:
        needs: what it asks of the loop; may be a property if settings decide.
        hidden: layers whose outputs the next reply must hold; it may change at each step.
        rest: number of coming steps without a draft, because of what the drafter itself knows.
            Like ``Budget.rest``, it counts down in :meth:`propose`, or in :meth:`rested`.
        whole: the tree just proposed must be verified as it is: no budget cuts it and nothing is
            added. This is for rows that serve later drafts more than this one.
        offer: what the loop gives.
    """

    needs: Needs = Needs()
    hidden: tuple[int, ...] = ()
    rest: int = 0
    whole: bool = False
    offer: Offer = Offer(Budget(MAX_DRAFT))

    def begin(self, offer: Offer) -> None:
        """Called once, before the first step."""
        self.offer = offer

    def check(self, seq: TokenSequence) -> None:
        """Raise InvalidInput if no draft can be made for a request; called before its first
        step."""

    def draft(self, seq: TokenSequence, limit: int) -> TokenTree:
        """A tree of at most ``limit`` nodes that may follow ``seq.tokens``; EMPTY for none."""
        raise NotImplementedError

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        """Draft like :meth:`draft`; this method may also yield requests and get their replies."""
        return self.draft(seq, limit)
        yield  # Makes it a generator.

    def wait(self, seq: TokenSequence) -> None:
        """Called in place of :meth:`propose` in a step for which the loop or a fusion wants no
        draft."""

    def score(self, forward: Forward) -> Scoring:
        """Run a verification, or the part of it that is left; the reply is that of the whole."""
        return (yield forward)

    def observe(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        """Look at a verification before its tokens are committed, with all rows, also rejected
        ones."""

    def rested(self, seq: TokenSequence, made: StepsMade) -> None:
        """Look at steps without a draft that a backend made; their tokens are committed.

        Called in place of :meth:`observe`, for drafters with ``Needs.rests``.
        """
        self.rest = max(0, self.rest - made.count)

    def multi_step(self, seq: TokenSequence) -> MultiStep | None:
        """How a backend makes several steps in the drafter's place; None if it cannot draft this
        way."""
        return None
