"""Commit sure positions in and beyond the block, and try tokens at uncertain positions in it.

This file is longer than other policies, because trying several tokens needs a loop of its own.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from paradecode.core.decoder import Steps, TokenSequence
from paradecode.methods.canvas.canvas import Decision, Marks, View
from paradecode.methods.canvas.forwards import MOST_ROWS, instead, run_branches
from paradecode.methods.canvas.loop import Unmask, decided, policy
from paradecode.methods.canvas.policies.base import Policy
from paradecode.methods.parts import parameter


@dataclass
class TryTokens(Unmask):
    """The loop whose forward holds several canvases. They differ in the token at one position."""

    policy: ExploreThenExploit

    def decode(self, seq: TokenSequence) -> Steps:
        canvas = self.begin(seq)
        view: View | None = None
        while not seq.finished:
            if view is None:
                view = yield from self.look(*self.plan())
            view = self.narrow(view)
            decision = yield from decided(self.policy, view)
            self.commit(view, decision, show=False)
            after, row = None, self.policy.explored
            if row is not None and canvas.masked[view.positions[row]]:
                row = None  # The constraint removed it from the decision.
            if row is not None and canvas.edge < canvas.end:
                after = yield from self._best(view, row)
                token = canvas.tokens[view.positions[row]]
                chance = np.exp(view.logits.select([row]).log_probability(np.array([[token]])))
                view.confidence[row] = chance[0, 0]
            self.show(view, decision)
            view = after

    def _best(self, view: View, row: int) -> Generator[Any, Any, View]:
        """Run the canvas with each likely token at the explored position, and write the best token.

        Returns the view of the canvas with that token.
        """
        window, plan = self.plan()
        forward, positions = self.ask(window, plan)
        count = max(1, min(self.policy.branches, MOST_ROWS // len(forward.tokens)))
        rivals = []
        for token in _likely(view, row, count):
            rival = self.canvas.copy()
            rival.tokens[view.positions[row]] = token
            if rival.rules is None or rival.rules.fits(rival.tokens, rival.masked):
                rivals.append(rival)
        logits = yield from run_branches([instead(forward, rival) for rival in rivals])
        self.store(plan)
        views = [
            self.read(window, plan.refresh, positions, rows, rival)
            for rival, rows in zip(rivals, logits, strict=True)
        ]
        best = max(views, key=self.policy.cascade)  # The first of equal ones.
        self.canvas.tokens[:] = best.canvas.tokens
        return replace(best, canvas=self.canvas)


def _likely(view: View, row: int, count: int) -> list[int]:
    """Return up to ``count`` tokens for ``row``: the proposal, then the most probable others."""
    ids, values = view.logits.select([row]).top_k(count + 1)
    others = ids[0][np.isfinite(values[0])].tolist()
    return list(dict.fromkeys([int(view.proposals[row]), *others]))[:count]


@policy(
    "ete",
    paper="From Bits to Rounds: Parallel Decoding with Exploration for Diffusion Language Models",
    arxiv="2511.21103",
    aliases=("explore-then-exploit",),
    names={"exploit_threshold": "threshold"},
    driver=TryTokens,
)
class ExploreThenExploit(Policy):
    """Exploit across blocks, and explore the most uncertain positions when little is sure.

    A token of probability p carries -log2 p bits, so tokens that are nearly certain add little
    information per forward pass. Deciding an uncertain position makes others certain. This is a
    reconstruction from the paper's abstract, because we found no published code and no settings.

    Tokens that pass the threshold are committed in the block and in ``ahead`` more blocks, and the
    best position always is. If fewer than ``enough`` positions are committed so, up to ``explore``
    positions of the block with the highest entropy get their best token as well; no two of them are
    neighbours. With more than one of ``branches``, the next forward tries that many tokens for the
    first of these positions, each on a canvas of its own. It continues with the canvas on which
    most positions pass the threshold.

    When: for experiments with text in which one decision settles many others.
    """

    observes = "canvas"

    threshold: float = parameter(0.9, 0.0, 1.01, "least probability of a token that is committed")
    ahead: int = parameter(1, 0, 1 << 20, "number of later blocks that are decided as well")
    explore: int = parameter(1, 0, 4096, "unsure positions that are committed in a forward")
    enough: int = parameter(2, 0, 4096, "explore only if fewer positions than this are sure")
    branches: int = parameter(1, 1, 16, "tokens that are tried for the first unsure position")
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
        """Return the number of positions above the threshold, and the log-probability of all."""
        sure = view.confidence[self._reach(view)]
        return int((sure >= self.threshold).sum()), float(np.log(sure).sum())

    def _reach(self, view: View) -> Marks:
        """Return bool [K]: True for masked positions of the block and the next ``ahead`` blocks."""
        window = view.window
        limit = window.end + self.ahead * (window.end - window.start)
        return view.canvas.masked[view.positions] & (view.positions < limit)

    def _unsure(self, view: View, free: Marks) -> list[int]:
        """Return the ``free`` rows with the highest entropies, no two of them neighbours."""
        rows = np.flatnonzero(free)
        rows = rows[np.argsort(-view.entropy[rows], kind="stable")]
        found: dict[int, int] = {}  # Position -> row.
        for at, row in zip(view.positions[rows].tolist(), rows.tolist(), strict=True):
            if len(found) < self.explore and found.keys().isdisjoint((at - 1, at + 1)):
                found[at] = row
        return list(found.values())
