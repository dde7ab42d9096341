"""Policies that commit proposals whose confidence passes a threshold."""

from __future__ import annotations

import numpy as np

from paradecode.methods.canvas.canvas import Decision, View
from paradecode.methods.canvas.loop import policy
from paradecode.methods.canvas.policies.base import SCORES, Policy
from paradecode.methods.parts import choice, parameter


@policy(
    "threshold",
    paper="Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV Cache and "
    "Parallel Decoding",
    arxiv="2505.22618",
    aliases=("fast-dllm", "confidence-threshold"),
)
class Threshold(Policy):
    """Commit every position at least as probable as the threshold, and always the best one.

    The positions of one forward pass are decided as if they did not depend on one another. This is
    nearly right where each of them is nearly certain; a lower threshold makes more errors. With
    ``score=entropy`` the threshold is the highest entropy of a position that is committed:
    dParallel (2509.26488) takes 0.5, with a model that `paradecode train dparallel` made.

    When: the default for diffusion models: one number trades forwards against quality. Find yours
    with ``paradecode bench --suite parallel``.
    """

    threshold: float = parameter(0.9, 0.0, 1.01, "least probability; above 1: one a forward")
    score: str = choice("confidence", ("confidence", "entropy"), "entropy: most nats of a position")

    def decide(self, view: View) -> Decision:
        score, least = view.confidence, self.threshold
        if self.score == "entropy":
            score, least = -view.entropy, -least
        sure = int((view.eligible & (score >= least)).sum())
        return Decision(np.sort(view.best(score, max(sure, 1))))


@policy(
    "factor",
    paper="Fast-dLLM: Training-free Acceleration of Diffusion LLM by Enabling KV Cache and "
    "Parallel Decoding",
    arxiv="2505.22618",
)
class Factor(Policy):
    """Commit the n surest positions while (n + 1)(1 - probability) is at most the factor.

    With a factor of 1, taking the best token of each position gives the best tokens of their joint
    distribution (the paper's theorem 1). The best position is always committed.

    When: as ``threshold``, where the number of committed positions should follow from how sure they
    are together.
    """

    factor: float = parameter(1.0, 0.0, 1e6, "bound of (n + 1)(1 - probability) of n tokens")

    def decide(self, view: View) -> Decision:
        order = view.best(view.confidence, len(view.positions))
        doubt = 1.0 - view.confidence[view.rows(order)]
        fits = doubt * (np.arange(len(order)) + 2) <= self.factor
        fits[0] = True
        count = len(order) if fits.all() else int(np.argmin(fits))
        return Decision(order[:count])


# A policy that trusts the neighbours of sure positions.


@policy(
    "local-leap",
    paper="Accelerating Diffusion LLM Inference via Local Determinism Propagation",
    url="https://github.com/friedrichor/LocalLeap",
    aliases=("localleap",),
    names={
        "anchor_threshold": "threshold", "relaxed_threshold": "relaxed",
        "neighbor_radius": "radius",
    },
)  # fmt: skip
class LocalLeap(Policy):
    """Commit as `threshold` does, with a lower threshold near positions that pass it.

    A position that is committed at the lower threshold does not lower the threshold for others in
    the same step.

    When: ``threshold`` stalls beside text that is sure already, as in lists, code and formulas.
    """

    threshold: float = parameter(0.9, 0.0, 1.01, "least probability of an anchor")
    relaxed: float = parameter(0.75, 0.0, 1.01, "least probability near an anchor")
    radius: int = parameter(4, 0, 1 << 20, "positions on either side that are near an anchor")

    def decide(self, view: View) -> Decision:
        anchors = view.eligible & (view.confidence >= self.threshold)
        if not anchors.any():
            return Decision(view.best(view.confidence, 1))
        places = view.positions[anchors]
        after = np.searchsorted(places, view.positions)
        left = view.positions - places[np.maximum(after - 1, 0)]
        right = places[np.minimum(after, len(places) - 1)] - view.positions
        near = np.minimum(np.abs(left), np.abs(right)) <= self.radius
        sure = near & (view.confidence >= self.relaxed)
        return Decision(view.positions[view.eligible & (anchors | sure)])


# A policy that leaves unsure positions open, in a window that slides on around them.


@policy(
    "deferred",
    paper="Deferred Commitment Decoding for Diffusion Language Models with Confidence-Aware "
    "Sliding Windows",
    arxiv="2601.02076",
    aliases=("dcd", "deferred-commitment"),
    names={"tau": "threshold"},
    defaults={"blocks": "sliding"},
)
class Deferred(Policy):
    """Commit what passes the threshold, and cut the canvas behind a committed end of text.

    The block rule is the other half of the method. Its default, ``blocks=sliding``, holds a fixed
    number of masks in the window. An unsure position therefore waits for its right context, and is
    not forced at the end of a block. The paper's cache is ``cache=delayed``. The paper's variant
    for the blocks of semi-causal models is not implemented.

    When: fixed blocks force unsure tokens at their ends, and no block length suits all texts.
    """

    threshold: float = parameter(0.9, -100.0, 1.01, "least score; the best position always passes")
    score: str = choice(
        "confidence", ("confidence", "margin", "entropy"), "entropy: minus the entropy, in nats"
    )

    def decide(self, view: View) -> Decision:
        scores = SCORES[self.score](view)
        sure = int((view.eligible & (scores >= self.threshold)).sum())
        commit = np.sort(view.best(scores, max(sure, 1)))
        ends = np.isin(view.proposals[view.rows(commit)], view.canvas.stops)
        if not ends.any():
            return Decision(commit)
        end = int(commit[ends.argmax()])
        return Decision(commit[commit <= end], truncate=end + 1)
