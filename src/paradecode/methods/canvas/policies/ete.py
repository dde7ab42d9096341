"""Commit beyond the block what is sure, and some of what is most unsure within it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Steps
from paradecode.core.sequence import Sequence
from paradecode.methods.canvas.branches import MOST_ROWS, run_branches
from paradecode.methods.canvas.canvas import Canvas
from paradecode.methods.canvas.loop import (
    Output,
    Pace,
    Unmask,
    apply,
    ask,
    forced,
    look,
    read,
)
from paradecode.methods.canvas.method import policy
from paradecode.methods.canvas.policies.base import Policy
from paradecode.methods.canvas.view import Decision, View
from paradecode.methods.registry import parameter


@dataclass
class TryTokens(Unmask):
    """The loop, with a forward of several canvases that differ in the token that was explored."""

    policy: ExploreThenExploit

    def decode(self, seq: Sequence) -> Steps:
        canvas = self.begin(seq)
        pace, output = Pace(canvas, self.steps), Output(seq, canvas, self.policy.revises)
        view: View | None = None
        while not seq.finished:
            if view is None:
                window = self.blocks.window(canvas)
                plan = self.cache.plan(canvas, window)
                view = yield from look(seq, canvas, window, plan, self.policy, pace)
            view = pace.of(view.within(self.blocks.narrow(view)))
            decision = forced(view, self.policy.decide(view))
            apply(canvas, view, decision)
            self.cache.after(view, decision)
            self.blocks.after(view, decision)
            after = None
            if self.policy.explored is not None and canvas.edge < canvas.end:
                row = self.policy.explored
                after = yield from self._best(seq, canvas, view, row, pace)
                token = canvas.tokens[view.positions[row]]
                chance = np.exp(view.logits.select([row]).log_probability(np.array([[token]])))
                view.confidence[row] = chance[0, 0]
            output.show(view, decision)
            view = after

    def _best(
        self, seq: Sequence, canvas: Canvas, view: View, row: int, pace: Pace
    ) -> Generator[Any, Any, View]:
        """Forward the canvas with each token for the explored row; write the best, see it."""
        window = self.blocks.window(canvas)
        plan = self.cache.plan(canvas, window)
        forward, positions = ask(canvas, window, plan, self.policy)
        assert forward.positions is not None
        count = max(1, min(self.policy.branches, MOST_ROWS // len(forward.tokens)))
        rivals = []
        for token in likely(view, row, count):
            rival = canvas.copy()
            rival.tokens[view.positions[row]] = token
            if rival.rules is None or rival.rules.fits(rival.tokens, rival.masked):
                rivals.append(rival)
        forwards = [replace(forward, tokens=rival.tokens[forward.positions]) for rival in rivals]
        logits = yield from run_branches(forwards)
        canvas.stored = np.where(plan.store, canvas.tokens, canvas.stored)
        views = [
            read(seq, rival, window, plan.refresh, self.policy, pace, positions, rows)
            for rival, rows in zip(rivals, logits, strict=True)
        ]
        best = max(views, key=self.policy.cascade)  # The first of equal ones.
        canvas.tokens[:] = best.canvas.tokens
        return replace(best, canvas=canvas)


def likely(view: View, row: int, count: int) -> list[int]:
    """The proposal for a row, then the most probable other tokens."""
    ids, values = view.logits.select([row]).top_k(count + 1)
    first = int(view.proposals[row])
    others = ids[0][np.isfinite(values[0])].tolist()
    return [first, *(token for token in others if token != first)][:count]


@policy(
    "ete",
    paper="From Bits to Rounds: Parallel Decoding with Exploration for Diffusion Language Models",
    arxiv="2511.21103",
    aliases=("explore-then-exploit",),
    names={"exploit_threshold": "threshold"},
    driver=TryTokens,
)
@dataclass
class ExploreThenExploit(Policy):
    """Exploit across blocks, and explore the most uncertain positions when little is sure.

    A token of probability p carries -log2 p bits, so that sure tokens alone bring a text forward
    slowly; deciding an unsure position makes others certain. This is a reconstruction from the
    paper's abstract (no code and no settings were published where we looked): what passes the
    threshold is committed in the block and in ``ahead`` more, and the best position always; if
    those are fewer than ``enough``, the ``explore`` positions of the block with the highest
    entropy, no two of them neighbours, get their best token as well. With more ``branches`` the
    next forward tries as many tokens for the first of them, each on a canvas of its own, and goes
    on from the one after which most positions pass the threshold.

    When: to experiment: text in which one decision settles many others.
    """

    observes = "canvas"

    threshold: float = parameter(0.9, 0.0, 1.01, "least probability")
    ahead: int = parameter(1, 0, 1 << 20, "blocks behind the present one that are decided, too")
    explore: int = parameter(1, 0, 4096, "unsure positions that are committed in a forward")
    enough: int = parameter(2, 0, 4096, "sure positions from which on nothing is explored")
    branches: int = parameter(1, 1, 16, "tokens that are tried for the first of them")
    explored: int | None = field(default=None, init=False)

    def decide(self, view: View) -> Decision:
        sure = self._reach(view) & (view.confidence >= self.threshold)
        sure[view.rows(view.best(view.confidence, 1))] = True
        chosen, self.explored = sure.copy(), None
        if sure.sum() < self.enough:
            rows = self._unsure(view, view.eligible & ~sure)
            chosen[rows] = True
            self.explored = rows[0] if rows and self.branches > 1 else None
        return Decision(view.positions[chosen])

    def cascade(self, view: View) -> tuple[int, float]:
        """How many positions could be exploited, and how sure all are together."""
        sure = view.confidence[self._reach(view)]
        return int((sure >= self.threshold).sum()), float(np.log(sure).sum())

    def _reach(self, view: View) -> NDArray[np.bool_]:
        """bool [K]: masked, in the block or in those ``ahead``."""
        window = view.window
        limit = window.end + self.ahead * (window.end - window.start)
        return view.canvas.masked[view.positions] & (view.positions < limit)

    def _unsure(self, view: View, free: NDArray[np.bool_]) -> list[int]:
        """Rows of the highest entropies among the ``free`` ones, none next to another."""
        rows: list[int] = []
        if self.explore == 0:
            return rows
        taken: set[int] = set()
        order = np.flatnonzero(free)
        for row in order[np.argsort(-view.entropy[order], kind="stable")].tolist():
            at = int(view.positions[row])
            if not {at - 1, at + 1} & taken:
                rows.append(row)
                taken.add(at)
            if len(rows) == self.explore:
                break
        return rows
