"""Policies that favour tokens which a position predicted in several forward passes."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from paradecode.core.logits import Logits, Warp
from paradecode.methods.canvas.canvas import NO_POSITIONS, Canvas, Decision, Positions, View
from paradecode.methods.canvas.loop import policy
from paradecode.methods.canvas.policies.base import Policy, Wrapper, quota
from paradecode.methods.parts import choice, parameter, part

EMPTY = -1
"""The token id of a slot that holds no token."""


@policy(
    "credit",
    paper="CreditDecoding: Accelerating Parallel Decoding in Diffusion Large Language Models with "
    "Trace Credits",
    arxiv="2510.06133",
    aliases=("credit-decoding",),
    names={"alpha": "weight", "beta": "decay", "gamma": "exponent"},
)
class Credit(Wrapper):
    """Raise the logits of tokens that a position predicted before; then decide as the base does.

    In each forward pass the most probable token of a masked position earns credit: its probability
    to the power of ``exponent``. All earlier credit is multiplied by ``decay``, and ``weight`` *
    log(1 + credit) is added to the logits. The defaults are from dInfer; the paper's form without
    parameters is ``schedule=mask_ratio``.

    A position holds credit for as many tokens as it has ``slots``. If all slots are full, the token
    with the least credit loses its slot. With 0 slots a position holds the credit of every token
    that was once its most probable one.

    When: long canvases, where the right token shows early but stays below the threshold for long.
    In short blocks there is little to gain.
    """

    base: str = part("threshold(threshold=0.8)", "policy", "policy underneath")
    weight: float = parameter(0.7, 0.0, 100.0, "factor of log(1 + credit), added to the logits")
    decay: float = parameter(0.8, 0.0, 1.0, "factor of a credit after each forward")
    exponent: float = parameter(0.2, 0.0, 1e6, "exponent of the probability that is earned")
    schedule: str = choice(
        "fixed", ("fixed", "mask_ratio"), "mask_ratio: weight and decay are the decided share"
    )
    slots: int = parameter(0, 0, 64, "most tokens with credit at a position; 0: no limit")

    def start(self, canvas: Canvas) -> None:
        self.canvas, self.all_masks = canvas, max(int(canvas.masked.sum()), 1)
        self.tokens = np.full((canvas.end, max(self.slots, 1)), EMPTY, np.int32)
        self.credit = np.zeros(self.tokens.shape)
        super().start(canvas)

    def fuse(self, logits: Logits, positions: NDArray[np.int64]) -> Logits:
        weight, decay, exponent = self.weight, self.decay, self.exponent
        if self.schedule == "mask_ratio":
            weight = decay = 1.0 - self.canvas.masked.sum() / self.all_masks
            exponent = 1.0
        best = logits.argmax()
        earned = np.exp(logits.log_probability(best[:, None])[:, 0] * exponent)
        self.credit[positions] *= decay
        masked = self.canvas.masked[positions]
        self._earn(positions[masked], best[masked], earned[masked])
        added = (weight * np.log1p(self.credit[positions])).astype(np.float32)
        tokens = self.tokens[positions]
        biases = [
            (ids[ids != EMPTY], values[ids != EMPTY])
            for ids, values in zip(tokens, added, strict=True)
        ]
        return super().fuse(logits.with_bias(biases), positions)

    def _earn(
        self, at: NDArray[np.int64], best: NDArray[np.int32], earned: NDArray[np.float64]
    ) -> None:
        """Add credit in the token's own slot, an empty slot, or the slot of least credit."""
        held = self.tokens[at] == best[:, None]
        known = held.any(axis=1)
        if self.slots == 0 and not (known | (self.tokens[at] == EMPTY).any(axis=1)).all():
            self.tokens = np.pad(self.tokens, ((0, 0), (0, 1)), constant_values=EMPTY)
            self.credit = np.pad(self.credit, ((0, 0), (0, 1)))
            held = self.tokens[at] == best[:, None]
        value = np.where(self.tokens[at] == EMPTY, -1.0, self.credit[at])
        slot = np.where(known, held.argmax(axis=1), value.argmin(axis=1))
        before = np.where(known, self.credit[at, slot], 0.0)
        self.tokens[at, slot], self.credit[at, slot] = best, before + earned


# A policy that trusts positions which keep their token and stay near the top of the ranking.

WARM_UP, LATE = 5, 0.1
"""The step from which the released form looks back, and a share of masks.

If at most the share ``LATE`` of the masks is left, the policy remembers at most two positions.
"""

History = dict[int, NDArray[np.float32]]
"""Position -> its distribution in an earlier step, float32 [V]."""


@policy(
    "coherent",
    paper="Beyond Confidence: Adaptive and Coherent Decoding for Diffusion Language Models",
    arxiv="2512.02044",
    aliases=("ccd",),
    names={"seek_mode": "seek", "buffer": "width", "history": "depth"},
)
class Coherent(Policy):
    """Rank by predictions averaged over the last steps; commit many where they agree.

    ``form=paper`` remembers from each step the distributions of the ``width`` positions with the
    least entropy. Positions that were remembered in all of the last ``depth`` steps come first, in
    order of the entropy of their mean distribution. With ``seek`` all of them with a mean entropy
    below ``entropy`` are committed; otherwise the planned number of positions is committed. The
    paper does not publish its entropy; our default is a guess.

    ``form=released`` is the authors' code. It compares the best tokens with the best tokens of the
    previous step, for up to b + b * ``width`` positions, where b is the planned number of positions
    in a step.

    When: ``threshold`` commits tokens that later forward passes would have decided otherwise.
    Agreement over several forwards is a second opinion. Waiting for it saves fewer forwards.
    """

    form: str = choice("paper", ("paper", "released"), "the algorithm of the paper, or its code")
    seek: bool = parameter(True, 0, 1, "commit all coherent tokens (CCD-DS), not a fixed number")
    depth: int = parameter(3, 1, 8, "paper: number of averaged steps; 3 for Dream, 2 for LLaDA")
    width: int = parameter(4, 1, 32, "number of positions that are remembered of a step")
    entropy: float = parameter(0.3, 0.0, 100.0, "paper: highest entropy of a mean, in nats")

    def start(self, canvas: Canvas) -> None:
        self.histories: deque[History] = deque(maxlen=self.depth)
        self.step, self.buffer = 0, NO_POSITIONS
        self.best = np.full(canvas.end, -1, np.int32)

    def decide(self, view: View) -> Decision:
        order = view.best(-view.entropy, len(view.positions))
        commit = self._paper(view, order) if self.form == "paper" else self._released(view, order)
        self.step += 1
        return Decision(commit)

    def _paper(self, view: View, order: Positions) -> Positions:
        ranked = order[: self.width]
        chosen = view.logits.select(view.rows(ranked).tolist())
        now = chosen.probabilities(Warp(temperature=1.0)).astype(np.float32)
        self.histories.append(dict(zip(ranked.tolist(), now, strict=True)))
        full = len(self.histories) == self.depth
        steady = [at for at in ranked.tolist() if full and all(at in h for h in self.histories)]
        ranks = {at: _entropy(np.mean([h[at] for h in self.histories], axis=0)) for at in steady}
        coherent = sorted(ranks, key=lambda at: (ranks[at], at))
        sure = sorted(at for at in coherent if ranks[at] < self.entropy)
        if self.seek and sure:
            return np.array(sure, np.int64)
        rest = order[~np.isin(order, coherent)]
        return np.array([*coherent, *rest.tolist()], np.int64)[: quota(view.progress)]

    def _released(self, view: View, order: Positions) -> Positions:
        plan = quota(view.progress)
        last, self.best[view.positions] = self.best.copy(), view.logits.argmax()
        width = min(1 + max(0, self.step - 3), plan * (1 + self.width))
        if len(order) <= LATE * view.progress.masks:
            width = min(2, plan * (1 + self.width))
        commit = order[:plan]
        looks_back = WARM_UP <= self.step < view.progress.steps - 1
        if looks_back and np.isin(commit, self.buffer).any():
            same = order[:width]
            same = same[np.isin(same, self.buffer) & (self.best[same] == last[same])]
            if len(same) >= plan:
                commit = same if self.seek else same[:plan]
        self.buffer = order[~np.isin(order, commit)][:width]
        return commit


def _entropy(p: NDArray[np.floating]) -> float:
    kept = p[p > 0].astype(np.float64)
    return float(-(kept * np.log(kept)).sum())
