"""Commit what is redundant in space and time, on top of another policy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paradecode.core.noise import Purpose, key, uniform
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.method import policy
from paradecode.methods.canvas.policies import POLICIES
from paradecode.methods.canvas.view import Decision, View
from paradecode.methods.canvas.wrapper import Wrapper
from paradecode.methods.registry import choice, parameter, part

Marks = NDArray[np.bool_]


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
    proposed ``stays`` times in a row and have probability ``steady``. The paper's fine-tuned
    checkpoints are not needed. All rules read the proposals and their probabilities.

    When: ``threshold`` leaves the same proposals standing forward after forward. Check the quality:
    its rules see the proposals only.
    """

    base: str = part("threshold", POLICIES, "policy underneath")
    width: int = parameter(3, 0, 64, "positions of a neighbourhood; 0: no such rule")
    gaps: int = parameter(1, 0, 64, "decided positions that it may have")
    sure: float = parameter(0.8, 0.0, 1.01, "least mean probability, and that of a run's best")
    run: int = parameter(2, 0, 4096, "masks of a run; 0: no such rule")
    pick: str = choice("confidence", ("confidence", "mid", "random"), "which one of a run")
    stays: int = parameter(3, 0, 4096, "forwards with the same token; 0: no such rule")
    steady: float = parameter(0.8, 0.0, 1.01, "least value of the statistic")
    statistic: str = choice("last", ("last", "ave", "max"), "of the probabilities in a row")

    def start(self, canvas: Canvas) -> None:
        self.token = np.full(canvas.end, -1, np.int32)
        self.count = np.zeros(canvas.end, np.int64)
        self.total, self.most = np.zeros(canvas.end), np.zeros(canvas.end)
        super().start(canvas)

    def decide(self, view: View) -> Decision:
        first = self.inner.decide(view)
        left = view.eligible & ~np.isin(view.positions, first.commit)
        if not len(first.commit) and not len(first.revoke):  # What the loop would force.
            first = replace(first, commit=view.best(view.confidence, 1), tokens=None)
            left[view.rows(first.commit)] = False
        more = np.zeros(len(left), bool)
        for rule in (self._neighbourhoods, self._runs, self._persistent):
            more |= rule(view, left & ~more)
        if not more.any():
            return first
        rows = view.rows(first.commit)
        tokens = view.proposals[rows] if first.tokens is None else first.tokens
        return replace(
            first,
            commit=np.concatenate([first.commit, view.positions[more]]),
            tokens=np.concatenate([tokens, view.proposals[more]]),
        )

    def _neighbourhoods(self, view: View, left: Marks) -> Marks:
        """bool [K]: in a window of ``width`` that is sure on average."""
        start, end = view.window.start, view.window.end
        if not 0 < self.width <= end - start:
            return np.zeros(len(left), bool)
        at = view.positions[left] - start
        masks, sure = np.zeros(end - start), np.zeros(end - start)
        masks[at], sure[at] = 1.0, view.confidence[left]
        counts, sums = (np.convolve(x, np.ones(self.width), "valid") for x in (masks, sure))
        counts = np.rint(counts)
        fits = (counts > 0) & (self.width - counts <= self.gaps)
        good = fits & (sums >= self.sure * counts)
        inside = np.convolve(good, np.ones(self.width)) > 0.5
        chosen = np.zeros(len(left), bool)
        chosen[np.flatnonzero(left)[inside[at]]] = True
        return chosen

    def _runs(self, view: View, left: Marks) -> Marks:
        """bool [K]: one of each run of masks with the same proposal."""
        chosen, rows = np.zeros(len(left), bool), np.flatnonzero(left)
        if self.run == 0 or not len(rows):
            return chosen
        at, tokens = view.positions[rows], view.proposals[rows]
        ends = np.flatnonzero((np.diff(at) != 1) | (np.diff(tokens) != 0)) + 1
        for group in np.split(rows, ends):
            if len(group) >= self.run and view.confidence[group].max() > self.sure:
                chosen[self._one_of(view, group)] = True
        return chosen

    def _one_of(self, view: View, group: NDArray[np.int64]) -> int:
        if self.pick == "mid":
            return int(group[len(group) // 2])
        scores = view.confidence[group]
        if self.pick == "random":
            noise = key(view.seed, view.progress.step, Purpose.ORDER)
            scores = uniform(noise, view.positions[group])
        return int(group[scores.argmax()])

    def _persistent(self, view: View, left: Marks) -> Marks:
        """bool [K]: proposed again and again; counts this forward."""
        at, tokens, sure = view.positions[left], view.proposals[left], view.confidence[left]
        same = self.token[at] == tokens
        self.count[at] = np.where(same, self.count[at], 0) + 1
        self.total[at] = np.where(same, self.total[at], 0.0) + sure
        self.most[at] = np.maximum(np.where(same, self.most[at], 0.0), sure)
        self.token[at] = tokens
        forgotten = view.positions[~left]
        self.token[forgotten], self.count[forgotten] = -1, 0
        value = {"last": sure, "ave": self.total[at] / self.count[at], "max": self.most[at]}
        chosen = np.zeros(len(left), bool)
        if self.stays:
            steady = (self.count[at] >= self.stays) & (value[self.statistic] >= self.steady)
            chosen[np.flatnonzero(left)[steady]] = True
        return chosen
