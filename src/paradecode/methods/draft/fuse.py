"""Fusion: one draft made of several drafters' drafts (``suffix+token-recycling``)."""

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
    """A drafter made of drafters.

    Each part is asked for a draft of the whole size, and the most promising nodes of all are kept.
    Parts that run a model come last. They draft only if the budget finds that their forward still
    pays beside the drafts that cost nothing, because they are for places where there is nothing to
    copy (CopySpec's precedence, arXiv 2502.08923; the hybrid of SuffixDecoding, arXiv 2411.04975).
    After the verification each part sees the results of its own nodes, as if there were no others,
    unless it needs all rows.
    """

    parts: Sequence[Drafter]
    _drafts: list[TokenTree] = field(default_factory=list, init=False, repr=False)

    @property
    def needs(self) -> Needs:  # type: ignore[override]  # The parts' needs, read once a request.
        """The needs of all parts together. All rows go to the parts, one part after the other.

        Nothing is drawn: merged trees are verified as they stand, and draws would be lost.
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
        # A stable order: those that run no model first.
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
        """Steps in which the one part that copies text drafts while all draft models rest; None if
        they don't."""
        copying = [part for part in self.parts if not part.needs.costs]
        models = [part for part in self.parts if part.needs.costs]
        if len(copying) != 1 or not models or not all(part.needs.rests for part in models):
            return None
        steps = copying[0].multi_step(seq)
        return steps and replace(steps, steps=lambda: self._asleep, hidden=lambda: self.hidden)

    @property
    def _cascade(self) -> bool:
        """Whether some parts draft without a model, and others with one."""
        return len({bool(part.needs.costs) for part in self.parts}) == 2

    @property
    def _asleep(self) -> int:
        """Steps for which all models rest."""
        rests = [part.rest for part in self.parts if part.needs.costs]
        return max(self.offer.budget.asleep, min(rests, default=0))

    def _ask_states(self) -> None:
        layers = [layer for part in self.parts for layer in part.hidden]
        self.hidden = tuple(dict.fromkeys(layers))

    def join(self, drafts: Sequence[TokenTree], limit: int) -> TokenTree:
        """The ``limit`` best nodes of all drafts."""
        return merge(drafts).best(limit)

    def score(self, forward: Forward) -> Scoring:
        for part in self.parts:
            if TARGET in part.needs.runs:  # Only one is.
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
