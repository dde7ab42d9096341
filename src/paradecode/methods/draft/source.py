"""The model that drafts, or the part of it that does."""

from __future__ import annotations

from dataclasses import dataclass

from paradecode.core.layers import Layers, halves, work
from paradecode.core.request import TARGET
from paradecode.core.sequence import Sequence
from paradecode.methods.draft.budgets.base import LAST, Seconds


@dataclass(frozen=True)
class Source:
    """Who drafts: ``layers`` of ``model``, or all of it."""

    model: str = TARGET
    layers: Layers | None = None

    def seconds(self, seq: Sequence) -> Seconds:
        share = 1.0
        if self.layers is not None:
            facts = seq.about(self.model)
            # A layer has about 12 hidden_size^2 weights, the head vocab_size * hidden_size.
            head = facts.vocab_size / (12 * facts.hidden_size)
            share = (work(self.layers) + head) / (facts.layers + head)
        if self.model == TARGET:
            return lambda rows: share * (seq.step_seconds(rows) or 0.0)
        return lambda rows: share * (seq.step_seconds(rows, self.model) or 0.0)

    @property
    def last(self) -> int:
        """The last layer that runs."""
        return LAST if self.layers is None else halves(self.layers[-1])[0]

    def room(self, seq: Sequence) -> int:
        """How deep a tree can become."""
        return seq.room if self.model == TARGET else seq.room_for(self.model)
