"""Policies that mask decided positions again, or that commit redundant proposals early."""

from __future__ import annotations

from math import cos, floor, pi

import numpy as np

from paradecode.methods.canvas.canvas import Canvas, Decision, Marks, View
from paradecode.methods.canvas.loop import policy
from paradecode.methods.canvas.policies.base import Planned, Wrapper, share
from paradecode.methods.parts import choice, parameter, part

ROUNDS = 8
"""The most rounds per mask of a block."""


@policy(
    "remask",
    paper="Discrete Diffusion VLA: Bringing Discrete Diffusion to Action Decoding in "
    "Vision-Language-Action Policies",
    arxiv="2508.20072",
    aliases=("dd-vla", "secondary-remask"),
    names={"choice_temperature": "noise"},
    defaults={"steps": 12},
)
class Remask(Planned):
    """Decide in rounds on a cosine schedule; each round may mask decided positions again.

    Of n positions, floor(n cos(pi/2 (j + 1)/T)) are masked after round j of T, and none after the
    last round. The best positions are kept. ``form=released`` ranks decided positions again in
    every round, by their present probability times the share of rounds that remain, so that late
    rounds tend to mask decided positions. ``form=paper`` keeps decided positions unless their
    probability is below ``least`` (rising from 0) or has fallen by more than ``drop`` since they
    were committed; each is masked again at most ``limit`` times. The paper does not publish its
    values of these settings. A round that changes nothing is skipped.

    When: few rounds, planned beforehand, and mistakes that a later round can repair. Text is shown
    late.
    """

    observes = "window"
    revises = True

    form: str = choice("released", ("released", "paper"), "how decided positions are judged")
    noise: float = parameter(1.0, 0.0, 1e6, "noise of the ranking, which falls to 0 in rounds")
    least: float = parameter(0.5, 0.0, 1.0, "paper: last round's least probability of a token")
    drop: float = parameter(0.5, 0.0, 1.0, "paper: how far a decided token's probability may fall")
    limit: int = parameter(1, 0, 12, "paper: how often a position may be masked again")

    def start(self, canvas: Canvas) -> None:
        super().start(canvas)
        self.committed = np.full(canvas.end, np.inf)  # Probability at the commit; inf: not ours.
        self.revoked = np.zeros(canvas.end, np.int64)

    def decide(self, view: View) -> Decision:
        self.begins(view)
        # With more rounds per mask, rounds would undo one another's commits without end.
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


# A policy on top of another one, which also commits proposals that repeat in space or time.


@policy(
    "r2",
    paper="R2-dLLM: Accelerating Diffusion Large Language Models via Spatio-Temporal Redundancy "
    "Reduction",
    arxiv="2604.18995",
    aliases=("r2-dllm",),
    names={"token_cluster_size": "run"},
)
class R2(Wrapper):
    """Also commit sure neighbourhoods, one of each run of equal tokens, and tokens that persist.

    Three rules look at the positions that the policy underneath leaves masked, in this order. The
    first rule commits ``width`` adjacent positions, at most ``gaps`` of them decided, whose mean
    probability reaches ``sure``. The second rule commits one of ``run`` or more adjacent masks with
    the same token, if the best of them is above ``sure``. The third rule commits tokens that were
    proposed ``stays`` times in a row and have probability ``steady``. All rules read only the
    proposals and their probabilities. The paper also fine-tunes the model: `paradecode train r2`.

    When: ``threshold`` repeats the same proposals forward pass after forward. Check the quality.
    """

    base: str = part("threshold", "policy", "policy underneath")
    width: int = parameter(3, 0, 64, "number of positions of a neighbourhood; 0 turns the rule off")
    gaps: int = parameter(1, 0, 64, "most decided positions in a neighbourhood")
    sure: float = parameter(0.8, 0.0, 1.01, "least mean probability, or of a run's best mask")
    run: int = parameter(2, 0, 4096, "least number of masks in a run; 0 turns the rule off")
    pick: str = choice("confidence", ("confidence", "mid", "random"), "which mask of a run")
    stays: int = parameter(3, 0, 4096, "forwards with the same token; 0 turns the rule off")
    steady: float = parameter(0.8, 0.0, 1.01, "least value of `statistic`")
    statistic: str = choice("last", ("last", "ave", "max"), "how `steady` reads the probabilities")

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
        """Return bool [K]: True for positions in ``width`` adjacent ones that are sure on
        average.
        """
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
        """Return bool [K]: True for one position of each run of masks with the same proposal."""
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
        """Return bool [K]: True for positions that had the same proposal for enough forward passes.

        Each call counts one forward, so call it once for each view.
        """
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
