"""Delayed trees: one trunk, then branches; the numbers are picked for each step."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.request import Reply
from paradecode.core.sequence import Sequence, Verdict
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.budgets.actions import Action, actions
from paradecode.methods.draft.budgets.shapes import Shape, Shaped
from paradecode.methods.draft.budgets.situations import Situations
from paradecode.methods.draft.budgets.states import DraftRows
from paradecode.methods.draft.budgets.tree_selector import TreeSelector


@dataclass
class Delayed(Shaped):
    """Branch only after a trunk, where the first tokens would agree anyway.

    Thomas et al. 2026 (arXiv 2602.16994). Without ``selector`` the action with the most expected
    tokens per second is taken, from the tenant's acceptance by rank and this machine's costs.

    The paper's selector network (``paradecode train tree-selector``) reads hidden states and
    entropies. It chooses after the first draft forward of a step, whose row it reads, and not
    before a first verification has shown both models' rows: until then the formula chooses. Both
    look at the past only, never at the draft they shape.
    """

    selector: TreeSelector | None = None
    _situations: Situations = field(default_factory=Situations, repr=False)

    @property
    def reads_draft(self) -> bool:
        return self.selector is not None

    @property
    def reads_target(self) -> bool:
        return self.selector is not None

    def choose(self, seq: Sequence) -> Shape:
        options = actions(self.count)
        if not options:
            return {}
        rates = self._ranks.rates
        base = seq.step_seconds(1)

        def speed(action: Action) -> float:
            tokens = action.tokens(float(rates[0]), float(rates[: action.branches].sum()))
            verify = (seq.step_seconds(1 + action.nodes) or base) if base else 1.0
            draft = (action.trunk + action.length) * self._draft if base else 0.0
            return (1 + seq.neighbours + tokens) / (verify + draft)

        return max(options, key=speed).shape()

    def limit(self, seq: Sequence) -> int:
        limit = super().limit(seq)
        return limit if self.selector is None else self.count

    def see_draft(
        self, seq: Sequence, tree: TokenTree, nodes: NDArray[np.int32], rows: DraftRows
    ) -> None:
        assert self.selector is not None
        situation = self._situations.see_draft(seq, tree, nodes, rows, self._draft)
        if situation is not None:
            self._shape = self.selector.choose(situation, self.count).shape()

    def see_target(self, seq: Sequence, tree: TokenTree, reply: Reply, verdict: Verdict) -> None:
        self._situations.see_target(seq, tree, reply, verdict)
