"""The loop of every draft-and-verify method."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from paradecode.core.decoder import Steps
from paradecode.core.request import Forward, Reply, Request
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.methods.draft.budgets import Budget
from paradecode.methods.draft.budgets.states import LAST
from paradecode.methods.draft.constrained import ForcedTokens
from paradecode.methods.draft.verifiers import Verifier, coupled

Proposal = Generator["Request | list[Request]", Any, TokenTree]
"""A drafter may yield requests of its own (a draft model's forwards) before it returns a tree."""


class Drafter(Protocol):
    """Where candidates come from. One object a request, so it may keep state between steps."""

    def propose(self, seq: Sequence, limit: int) -> Proposal:
        """A tree of at most ``limit`` nodes that may follow ``seq.tokens``; EMPTY for none."""
        ...

    def observe(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        """See a verification before its tokens are committed: all rows, rejected ones included."""
        ...


@runtime_checkable
class Grower(Protocol):
    """A drafter that pays for each level of its tree: it is given the loop's budget to consult."""

    budget: Budget


def grows(drafter: Drafter) -> bool:
    """Whether a drafter, or a part of it, grows its tree with a model and consults the budget."""
    parts: Iterable[Drafter] = getattr(drafter, "parts", ())
    return any(map(grows, parts)) if parts else isinstance(drafter, Grower)


@dataclass
class DraftVerify:
    """Draft, verify, commit, until the sequence is finished.

    The first forward carries the whole prompt and may already carry a draft. A drafter that has an
    attribute ``hidden`` (layers) finds those hidden states in the replies it observes.

    Attributes:
        reads_draws: the verifier tests p against the q that nodes were drawn from, so a budget must
            not cut a sampled tree by what was drawn. Otherwise it may, and is given leave to.
    """

    drafter: Drafter
    budget: Budget
    verify: Verifier = coupled
    reads_draws: bool = False
    forced: ForcedTokens = field(default_factory=ForcedTokens, init=False)

    def __post_init__(self) -> None:
        if isinstance(self.drafter, Grower):
            self.drafter.budget = self.budget
        if hasattr(self.drafter, "reads_draws"):  # It can draw children from q as well.
            self.drafter.reads_draws = self.reads_draws

    def decode(self, seq: Sequence) -> Steps:
        while not seq.finished:
            # The last free place is for the token that the verification itself yields.
            limit = min(self.budget.limit(seq), seq.room - 1)
            tree = EMPTY
            if limit > 0:
                tree = yield from self.drafter.propose(seq, limit)
                tree = tree.clip(seq.room - 1)
            # A drafter says ``whole`` where rows that seem to be worth nothing feed it.
            if not (limit > 0 and getattr(self.drafter, "whole", False)):
                tree = self.forced.join(seq, tree if self.reads_draws else tree.determined())
                if limit > 0 or len(tree):
                    tree = self.budget.cut(seq, tree)
            hidden = getattr(self.drafter, "hidden", ())
            if self.budget.reads_target:
                hidden = (*hidden, LAST)
            # The trace keeps the forward's tree: not the rows of q with it.
            reply = yield Forward(seq.pending, tree=tree.determined(), hidden=hidden)
            verdict = self.verify(seq, tree, reply)
            if self.budget.reads_target:
                self.budget.see_target(seq, tree, reply, verdict)
            everything = getattr(self.drafter, "observes_all", False)
            self.drafter.observe(seq, *self.forced.observe(tree, reply, verdict, everything))
            self.budget.observe(tree, verdict)
            seq.commit(verdict)
