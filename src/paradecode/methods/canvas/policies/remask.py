"""A policy that masks decided positions again when they do not hold up."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, floor, pi

import numpy as np

from paradecode.methods.canvas.canvas import Canvas, Decision, View
from paradecode.methods.canvas.loop import policy
from paradecode.methods.canvas.policies.base import Planned, share
from paradecode.methods.parts import choice, parameter

ROUNDS = 8
"""The most rounds for each mask of a block."""


@policy(
    "remask",
    paper="Discrete Diffusion VLA: Bringing Discrete Diffusion to Action Decoding in "
    "Vision-Language-Action Policies",
    arxiv="2508.20072",
    aliases=("dd-vla", "secondary-remask"),
    names={"choice_temperature": "noise"},
    defaults={"steps": 12},
)
@dataclass
class Remask(Planned):
    """Keep the best positions of each round on a cosine schedule; decided ones may be masked again.

    After round j of T floor(n cos(pi/2 (j + 1)/T)) of n positions are masked, and none after the
    last. ``form=released`` ranks decided positions anew in every round, by their probability now
    times what is left of the rounds, so that late rounds tend to mask decided ones. ``form=paper``
    keeps them, unless their probability is below ``least`` (rising from 0) or has fallen by more
    than ``drop`` since they were committed, each at most ``limit`` times. The paper's own values
    of those are not published. A round that changes nothing is not run.

    When: few rounds, planned beforehand, and mistakes that a later round can repair. Text is shown
    late.
    """

    observes = "window"
    revises = True

    form: str = choice("released", ("released", "paper"), "how decided positions are judged")
    noise: float = parameter(1.0, 0.0, 1e6, "of the ranking, falling to 0 with the rounds")
    least: float = parameter(0.5, 0.0, 1.0, "paper: least probability of a decided token, at last")
    drop: float = parameter(0.5, 0.0, 1.0, "paper: how far its probability may fall")
    limit: int = parameter(1, 0, 12, "paper: how often a position may be masked again")

    def start(self, canvas: Canvas) -> None:
        super().start(canvas)
        self.committed = np.full(canvas.end, np.inf)  # The probability then; inf: not by us.
        self.revoked = np.zeros(canvas.end, np.int64)

    def decide(self, view: View) -> Decision:
        self.begins(view)
        # More rounds a mask would mask again what they commit, without an end in sight.
        rounds = min(share(view.progress), ROUNDS * max(view.progress.block_masks, 1))
        decision = Decision()
        while not len(decision.commit) and not len(decision.revoke):
            decision = self._next(view, min(self.step, rounds - 1), rounds)
            self.step += 1
        self.committed[decision.commit] = view.confidence[view.rows(decision.commit)]
        self.revoked[decision.revoke] += 1
        return decision

    def _next(self, view: View, turn: int, turns: int) -> Decision:
        if turn == turns - 1:
            return Decision(view.positions[view.eligible])
        done, all_masks = (turn + 1) / turns, view.progress.block_masks
        count = min(max(floor(all_masks * cos(pi / 2 * done)), 1), max(all_masks - 1, 0))
        unseen = view.canvas.masked[view.window.start : view.window.end].sum()
        count = max(count - int(unseen - view.eligible.sum()), 0)
        ours = view.inside & ~view.eligible & np.isfinite(self.committed[view.positions])
        now = np.exp(view.logits.log_probability(view.canvas.tokens[view.positions][:, None])[:, 0])
        scores = np.where(view.eligible, view.confidence, np.inf)
        if self.form == "released":
            scores = np.where(ours, now * (1.0 - done), scores)
        with np.errstate(divide="ignore"):
            # A policy on top may give no confidence at all, as a number below 0.
            ranks = np.log(np.maximum(scores, 0.0)) + self.noise * (1.0 - done) * view.gumbel(turn)
        masked = np.zeros(len(ranks), bool)
        rows = np.flatnonzero(view.eligible | ours)
        masked[rows[np.argsort(ranks[rows], kind="stable")[:count]]] = True
        revoke = ours & masked & np.isfinite(scores)
        if self.form == "paper":
            fallen = self.committed[view.positions] - now > self.drop
            fresh = self.revoked[view.positions] < self.limit
            revoke = ours & fresh & (fallen | (now < self.least * done))
        commit = view.eligible & ~masked
        return Decision(view.positions[commit], revoke=view.positions[revoke])
