"""A policy that also commits what is redundant in space and time, on top of another policy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.methods.canvas.canvas import Canvas, Decision, Marks, View
from paradecode.methods.canvas.loop import policy
from paradecode.methods.canvas.policies.base import Wrapper
from paradecode.methods.parts import choice, parameter, part


@policy(
    "r2",
    paper="R2-dLLM: Accelerating Diffusion Large Language Models via Spatio-Temporal Redundancy "
    "Reduction",
    arxiv="2604.18995",
    aliases=("r2-dllm",),
    names={"token_cluster_size": "run"},
)
@dataclass
class R2(Wrapper):
    """Also commit sure neighbourhoods, one of each run of equal tokens, and tokens that persist.

    On what the policy underneath leaves masked, in this order: ``width`` adjacent positions, at
    most ``gaps`` of them decided, whose mean probability reaches ``sure``; of ``run`` or more
    adjacent masks with the same token one, if the best of them is above ``sure``; tokens that were
    proposed ``stays`` times in a row and have probability ``steady``. All rules see the proposals
    and their probabilities only. The paper also fine-tunes the model: `paradecode train r2`.

    When: ``threshold`` leaves the same proposals standing forward after forward. Check the quality.
    """

    base: str = part("threshold", "policy", "policy underneath")
    width: int = parameter(3, 0, 64, "positions of a neighbourhood; 0: no such rule")
    gaps: int = parameter(1, 0, 64, "decided positions that it may have")
    sure: float = parameter(0.8, 0.0, 1.01, "least mean probability, and that of a run's best")
    run: int = parameter(2, 0, 4096, "masks of a run; 0: no such rule")
    pick: str = choice("confidence", ("confidence", "mid", "random"), "which one of a run")
    stays: int = parameter(3, 0, 4096, "forwards with the same token; 0: no such rule")
    steady: float = parameter(0.8, 0.0, 1.01, "least value of the statistic")
    statistic: str = choice("last", ("last", "ave", "max"), "of the probabilities in a row")

    def start(self, canvas: Canvas) -> None:
        self.token, self.count = np.full(canvas.end, -1, np.int32), np.zeros(canvas.end, np.int64)
        self.total, self.most = np.zeros(canvas.end), np.zeros(canvas.end)
        super().start(canvas)

    def decide(self, view: View) -> Decision:
        first = view.or_best(self.inner.decide(view))
        left = view.eligible & ~np.isin(view.positions, first.commit)
        more = np.zeros(len(left), bool)
        for rule in (self._neighbourhoods, self._runs, self._persistent):
            more |= rule(view, left & ~more)
        return view.and_also(first, more) if more.any() else first

    def _neighbourhoods(self, view: View, left: Marks) -> Marks:
        """bool [K]: positions in a window of ``width`` that is sure on average."""
        size = view.window.end - view.window.start
        if not 0 < self.width <= size:
            return np.zeros(len(left), bool)
        at = view.positions[left] - view.window.start
        masks, sure = np.zeros((2, size))
        masks[at], sure[at] = 1.0, view.confidence[left]
        counts, sums = (np.convolve(x, np.ones(self.width), "valid") for x in (masks, sure))
        good = (counts > 0) & (self.width - counts <= self.gaps) & (sums >= self.sure * counts)
        inside = np.convolve(good, np.ones(self.width)) > 0.5
        chosen = left.copy()
        chosen[left] = inside[at]
        return chosen

    def _runs(self, view: View, left: Marks) -> Marks:
        """bool [K]: one of each run of masks with the same proposal."""
        chosen, rows = np.zeros(len(left), bool), np.flatnonzero(left)
        at, tokens = view.positions[rows], view.proposals[rows]
        ends = np.flatnonzero((np.diff(at) != 1) | (np.diff(tokens) != 0)) + 1
        scores = view.uniform(view.progress.step) if self.pick == "random" else view.confidence
        for group in np.split(rows, ends) if self.run else []:
            if len(group) >= self.run and view.confidence[group].max() > self.sure:
                best = len(group) // 2 if self.pick == "mid" else scores[group].argmax()
                chosen[group[best]] = True
        return chosen

    def _persistent(self, view: View, left: Marks) -> Marks:
        """bool [K]: positions that were proposed the same token again and again; counts this
        forward."""
        at, tokens, sure = view.positions[left], view.proposals[left], view.confidence[left]
        same = self.token[at] == tokens
        self.count[at] = np.where(same, self.count[at], 0) + 1
        self.total[at] = np.where(same, self.total[at], 0.0) + sure
        self.most[at] = np.maximum(np.where(same, self.most[at], 0.0), sure)
        self.token[at] = tokens
        forgotten = view.positions[~left]
        self.token[forgotten], self.count[forgotten] = -1, 0
        value = {"last": sure, "ave": self.total[at] / self.count[at], "max": self.most[at]}
        chosen = left & bool(self.stays)
        chosen[left] &= (self.count[at] >= self.stays) & (value[self.statistic] >= self.steady)
        return chosen
