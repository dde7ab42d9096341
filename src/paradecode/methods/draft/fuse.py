"""Fusion: merges the drafts of several drafters, such as ``suffix+token-recycling``, into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from paradecode.core.decoder import TARGET, Forward, Reply, TokenSequence, Verdict
from paradecode.core.multi_step import MultiStep, StepsMade
from paradecode.core.tree import EMPTY, TokenTree
from paradecode.core.tree_builder import merge
from paradecode.methods.draft.constrained import share
from paradecode.methods.draft.contracts import Drafter, Needs, Offer, Proposal, Scoring


@dataclass
class Fused(Drafter):
    """Merges the drafts of several drafters into one, and shares the verification's result.

    Each drafter is asked for a draft of the full size, and the most promising nodes of all drafts
    are verified. Drafters that run a model come last, because they are meant for text that has
    nothing to copy. They draft only if the budget decides that their forward pass is worth its time
    beside the drafts that cost nothing. (CopySpec has the same precedence, arXiv 2502.08923, and so
    has the hybrid of SuffixDecoding, arXiv 2411.04975.)

    After a verification each drafter gets the results of its own nodes, as if there were no other
    nodes, unless it needs all rows.
    """

    parts: Sequence[Drafter]
    _drafts: list[TokenTree] = field(default_factory=list, init=False, repr=False)

    @property
    def needs(self) -> Needs:  # type: ignore[override]  # Read once per request.
        """The needs of all drafters together.

        ``all_rows`` stays False, because :meth:`observe` gives all rows to the drafters that need
        them. ``draws`` stays False as well: drafts are not sampled, because a merged tree would
        lose their distributions q.
        """
        parts = [part.needs for part in self.parts]
        return Needs(
            noise=any(part.noise for part in parts),
            levels=any(part.levels for part in parts),
            heads=any(part.heads for part in parts),
            runs=tuple(model for part in parts for model in part.runs),
            fuses=all(part.fuses for part in parts),
            rests=all(part.rests for part in parts),
        )

    def begin(self, offer: Offer) -> None:
        super().begin(offer)
        offer.budget.fused = self._cascade
        for part in self.parts:
            noise = offer.noise and part.needs.noise
            part.begin(Offer(offer.budget, noise, alone=False))

    def check(self, seq: TokenSequence) -> None:
        for part in self.parts:
            part.check(seq)

    def propose(self, seq: TokenSequence, limit: int) -> Proposal:
        self._drafts = [EMPTY] * len(self.parts)
        self.whole = False
        # A stable sort: drafters that run no model come first.
        for place, part in sorted(enumerate(self.parts), key=lambda each: each[1].needs.costs):
            last = self._cascade and part.needs.costs
            if last and not self.offer.budget.asks(seq, merge(self._drafts)):
                part.wait(seq)
                continue
            self._drafts[place] = yield from part.propose(seq, limit)
            self.whole = self.whole or part.whole
        self._ask_states()
        return self.join(self._drafts, limit)

    def wait(self, seq: TokenSequence) -> None:
        self.whole = False
        for part in self.parts:
            part.wait(seq)
        self._ask_states()

    def rested(self, seq: TokenSequence, made: StepsMade) -> None:
        for part in self.parts:
            part.rested(seq, made)

    def multi_step(self, seq: TokenSequence) -> MultiStep | None:
        """Return steps in which the only copying drafter drafts while all models pause, or None.

        The result is None if several drafters copy, if none runs a model, or if one cannot pause.
        """
        copying = [part for part in self.parts if not part.needs.costs]
        models = [part for part in self.parts if part.needs.costs]
        if len(copying) != 1 or not models or not all(part.needs.rests for part in models):
            return None
        steps = copying[0].multi_step(seq)
        return steps and replace(steps, steps=lambda: self._asleep, hidden=lambda: self.hidden)

    @property
    def _cascade(self) -> bool:
        """True if some drafters run a model and others do not."""
        return len({bool(part.needs.costs) for part in self.parts}) == 2

    @property
    def _asleep(self) -> int:
        """The number of coming steps in which all drafters that run a model pause."""
        rests = [part.rest for part in self.parts if part.needs.costs]
        return max(self.offer.budget.asleep, min(rests, default=0))

    def _ask_states(self) -> None:
        layers = [layer for part in self.parts for layer in part.hidden]
        self.hidden = tuple(dict.fromkeys(layers))

    def join(self, drafts: Sequence[TokenTree], limit: int) -> TokenTree:
        """Return a tree of the ``limit`` most promising nodes of all drafts."""
        return merge(drafts).best(limit)

    def score(self, forward: Forward) -> Scoring:
        for part in self.parts:
            if TARGET in part.needs.runs:  # At most one drafter runs the target.
                return (yield from part.score(forward))
        return (yield forward)

    def observe(self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        drafts = self._drafts or [EMPTY] * len(self.parts)
        for part, draft in zip(self.parts, drafts, strict=True):
            if part.needs.all_rows:
                part.observe(seq, tree, reply, verdict)
            else:
                part.observe(seq, *share(draft, tree, reply, verdict))
        self._drafts = []
