"""The loop of every draft-and-verify method."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, Protocol

from paradecode.core.decoder import Steps
from paradecode.core.request import Forward, Reply, Request
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.decoders.autoregressive.budget import Budget
from paradecode.decoders.autoregressive.verify import Verifier, coupled

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


@dataclass
class DraftVerify:
    """Draft, verify, commit, until the sequence is finished.

    The first forward carries the whole prompt and may already carry a draft.
    """

    drafter: Drafter
    budget: Budget
    verify: Verifier = coupled

    def decode(self, seq: Sequence) -> Steps:
        while not seq.finished:
            # The last free place is for the token that the verification itself yields.
            limit = min(self.budget.limit(seq), seq.room - 1)
            tree = EMPTY
            if limit > 0:
                tree = yield from self.drafter.propose(seq, limit)
                tree = self.budget.cut(seq, tree.clip(seq.room - 1))
            reply = yield Forward(seq.pending, tree=tree)
            verdict = self.verify(seq, tree, reply)
            self.drafter.observe(seq, tree, reply, verdict)
            self.budget.observe(tree, verdict)
            seq.commit(verdict)
