"""Budgets that use the drafter's own estimates, and budgets that sample trees in their own way.

:class:`BeamDraws` samples a tree level by level with a fixed number of paths (stochastic beams).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import nsmallest

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import TokenSequence, Verdict
from paradecode.core.multi_step import BudgetState
from paradecode.core.noise import mix, uniform
from paradecode.core.sampling import Sampler
from paradecode.core.tree import ROOT, Drawn, Mode, TokenTree
from paradecode.core.tree_builder import Ids, TreeBuilder, Weights, draw_swor, noise_key
from paradecode.methods.draft.acceptance import Calibration
from paradecode.methods.draft.contracts import Budget, Estimates, Marks, Nodes, Seconds, reach_of
from paradecode.methods.draft.greedy_draws import Draws, GreedyDraws
from paradecode.methods.parts import declare, parameter


@dataclass
class BeamDraws:
    """Draws the beams of RSD-S (Jeon et al. 2024): texts sampled from q without replacement.

    This is stochastic beam search (Kool et al. 2019, arXiv 1903.06059), described as a race. Each
    text arrives at a random time, which is exponentially distributed with the text's probability as
    rate. The first ``width`` texts of each length continue.

    A text arrives at the same time as its first continuation. The k-th child of a node follows the
    child before it after an exponential time, whose rate is the probability of the remaining
    children. (The negative logarithm of a time is the paper's perturbed log-probability.)

    The time of a child does not depend on its token. For example, a has probability 0.6 and b 0.4.
    If a is drawn first, it arrives with the root, at 0, and b after an exponential time of rate
    0.4. Whether a child is drawn therefore does not depend on its token, and verifiers that test p
    / q are exact for the tree.
    """

    tree: TreeBuilder
    limit: int
    width: int
    _times: dict[int, float] = field(default_factory=lambda: {ROOT: 0.0})
    _masses: dict[int, float] = field(default_factory=lambda: {ROOT: 1.0})
    _arriving: list[tuple[float, int, int, int, Drawn]] = field(default_factory=list)

    def know(self, sampler: Sampler, node: int, ids: Ids, q: Weights, width: int) -> None:
        key, drawn = noise_key(self.tree, sampler, node), Drawn(Mode.SWOR, ids, q)
        order = draw_swor(ids, q, key, min(width, self.width))
        left = 1.0 - np.cumsum([0.0, *map(drawn.of, order)])[1 : len(order)]
        waits = -np.log(uniform(mix(key), np.arange(len(left))))
        times = np.cumsum([0.0, *(waits / np.maximum(self._masses[node] * left, 1e-300))])
        for rank, (time, token) in enumerate(zip(times + self._times[node], order)):
            self._arriving.append((float(time), node, rank, token, drawn))

    def draw(self) -> list[int]:
        """Draw the next level; return its nodes, whose distributions are needed, as they
        arrived.
        """
        best = nsmallest(min(self.width, self.limit - len(self.tree)), self._arriving)
        self._arriving = []
        level = []
        for time, node, _, token, drawn in best:
            (child,) = self.tree.draw(node, [token], drawn)
            self._times[child] = time
            self._masses[child] = self._masses[node] * drawn.of(token)
            level.append(child)
        return level if len(self.tree) < self.limit else []


@declare("budget", "fixed", paper="EAGLE-2", arxiv="2406.16858")
class FixedBudget(Budget):
    """Verify up to ``num_speculative_tokens`` nodes at every step, the most promising first.

    Drafts are made whatever they cost: no drafter pauses or leaves out rows in order to save time.
    """

    def read(self) -> BudgetState:
        return BudgetState(Calibration().read(), [0, 0, 0])


@declare(
    "budget",
    "confidence",
    paper="Dynamic Speculation Lookahead (assisted generation in transformers)",
    arxiv="2405.04304",
)
class Confidence(Budget):
    """Stop after a node whose own probability is below ``threshold``.

    The unsure node itself is still verified.
    """

    threshold: float = parameter(0.4, 0.0, 1.0, "least probability of a node that is drafted on")

    def expand(self, seq: TokenSequence, tree: TokenTree, leaves: Nodes, seconds: Seconds) -> Nodes:
        sure = [leaf == ROOT or tree.estimates[leaf] >= self.threshold for leaf in leaves]
        return super().expand(seq, tree, leaves[np.array(sure, bool)], seconds)

    def cut(self, seq: TokenSequence, tree: TokenTree) -> TokenTree:
        if not tree.sampled:
            doubted = tree.estimates < self.threshold
            below = [parent != ROOT and bool(doubted[parent]) for parent in tree.parents]
            tree = tree.select(~np.array(below, bool))
        return super().cut(seq, tree)


@declare("budget", "dyspec", paper="DySpec", arxiv="2410.11744")
class DySpec(Budget):
    """Draw one node after another, always where the next one is most likely to be accepted.

    This is DySpec's greedy rule (Xiong et al. 2024). It is optimal if the draft model's
    probabilities are right. The paper's basic form runs one row of the draft model at a time. Here
    several rows run together; the tree is the same. Trees that are not sampled are grown as with
    ``fixed``, which follows the same rule.
    """

    def drawing(self, tree: TreeBuilder, limit: int) -> Draws:
        return GreedyDraws(tree, limit)


@declare("budget", "stochastic-beam", paper="Recursive Speculative Decoding", arxiv="2402.14160")
class StochasticBeam(Budget):
    """Draw whole paths without replacement, ``beams`` at each level (RSD-S, Jeon et al. 2024).

    The number of levels follows from ``num_speculative_tokens`` and ``beams``. Trees that are not
    sampled keep the most promising nodes of each level.
    """

    beams: int = parameter(3, 1, 16, "number of paths that are drafted on at each level")

    def drawing(self, tree: TreeBuilder, limit: int) -> Draws:
        return BeamDraws(tree, limit, self.beams)

    def grow(
        self, seq: TokenSequence, tree: TokenTree, parents: Nodes, estimates: Estimates
    ) -> Marks:
        offered = reach_of(tree, parents)[:, None] * estimates
        kept = np.zeros(offered.size, bool)
        kept[np.argsort(-offered, axis=None, kind="stable")[: self.beams]] = True
        marks: Marks = kept.reshape(offered.shape) & (offered > 0)
        return marks


# Hardware-aware size: one tree size for this machine, from averages.

MEMORY = 0.95
PRIOR = 0.8
"""Assumed probability that one more node of a draft is accepted, before any verification."""


@declare("budget", "hardware", paper="Hardware-Aware Parallel Prompt Decoding", arxiv="2405.18628")
class Hardware(Budget):
    """Verify the n nodes that maximise E(n) / t(n), where E(n) is the mean gain of n nodes.

    This is the rule of Chen et al. 2024. Unlike ``auto`` it does not look at the present draft:
    every step verifies the same number of nodes.
    """

    weighs = True
    _gain: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._gain = np.asarray(PRIOR ** np.arange(1, self.count + 1), np.float64)

    def limit(self, seq: TokenSequence) -> int:
        base = seq.step_seconds(1)
        if base is None:
            return self.count
        expected = 1.0 + seq.neighbours + np.concatenate([[0.0], np.cumsum(self._gain)])
        seconds = [seq.step_seconds(1 + nodes) or base for nodes in range(self.count + 1)]
        # At least one node, because averages are updated only by drafting.
        return max(int(np.argmax(expected / np.array(seconds))), min(1, self.count))

    def cut(self, seq: TokenSequence, tree: TokenTree) -> TokenTree:
        return tree.capped(self.limit(seq))

    def observe(self, tree: TokenTree, verdict: Verdict) -> None:
        """Record the gain of the n-th most promising node, for all nodes that were verified."""
        order = np.argsort(-tree.reach, kind="stable")[: self.count]
        brought = np.isin(order, tree.follow(verdict.tokens[:-1])).astype(np.float64)
        self._gain[: len(order)] += (1 - MEMORY) * (brought - self._gain[: len(order)])
        # No node counts for more than a node before it.
        self._gain = np.minimum.accumulate(self._gain)
