"""Delayed trees: a trunk that then branches; the numbers are chosen anew for each step."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from paradecode.core.decoder import Apply, Reply, TokenSequence, Verdict
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.budgets.base import DraftRows, Nodes, needs_levels
from paradecode.methods.draft.budgets.networks import TreeSelector, choices
from paradecode.methods.draft.budgets.shapes import Action, Shape, Shaped, actions
from paradecode.methods.draft.budgets.situations import Situation, Situations
from paradecode.methods.draft.needs import Needs
from paradecode.methods.parts import declare, local_path


@declare("budget", "delayed", paper="Dynamic Delayed Tree Expansion", arxiv="2602.16994")
@dataclass
class Delayed(Shaped):
    """Branch only after a trunk, where the first tokens would agree anyway.

    Thomas et al. 2026 (arXiv 2602.16994). Branches are drawn independently, as in the paper, for
    the verifiers that are meant for this (``specinfer``, ``spectr``). Without ``selector`` the
    action with the most expected tokens per second is taken, from the tenant's acceptance by rank
    and this machine's costs.

    The paper's selector network (``paradecode train tree-selector``) reads hidden states and
    entropies. It chooses after the first draft forward of a step, whose row it reads, and not
    before a first verification has shown both models' rows: until then the formula chooses. Both
    look at the past only, never at the draft they shape.
    """

    selector: str = local_path("network by `paradecode train tree-selector`; empty: the formula")
    _selector: TreeSelector | None = field(default=None, init=False, repr=False)
    _now: Situation | None = field(default=None, init=False, repr=False)
    _situations: Situations = field(default_factory=Situations, repr=False)

    def __post_init__(self) -> None:
        if self.selector:
            self._selector = TreeSelector.open(self.selector)
            self.reads_draft = self.reads_target = self.networks = True

    def begin(self, method: str, needs: Needs) -> None:
        if self.reads_draft:
            needs_levels("tree_selector", self.selector, needs)

    def choose(self, seq: TokenSequence) -> Shape:
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

    def limit(self, seq: TokenSequence) -> int:
        limit = super().limit(seq)
        return limit if self._selector is None else self.count

    def see_draft(self, seq: TokenSequence, tree: TokenTree, nodes: Nodes, rows: DraftRows) -> None:
        self._now = self._situations.see_draft(seq, tree, nodes, rows, self._draft)

    def prepare(self, seq: TokenSequence, tree: TokenTree) -> Generator[Apply, Any, None]:
        now, self._now = self._now, None
        if now is None or self._selector is None:
            return
        inputs = vars(now)
        self._selector.expect({name: values.shape[1] for name, values in inputs.items()})
        scores = yield Apply(self._selector.network, inputs)
        options = choices(self._selector.facts["count"])
        fits = [action.nodes <= self.count for action in options]
        self._shape = options[int(np.argmax(np.where(fits, scores[0], -np.inf)))].shape()

    def see_target(
        self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict
    ) -> None:
        self._situations.see_target(seq, tree, reply, verdict)
