"""The budget ``delayed``: a trunk that then branches, with sizes chosen anew for each step."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Apply, Reply, TokenSequence, Verdict
from paradecode.core.logits import Logits
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.budgets.networks import TreeSelector, choices
from paradecode.methods.draft.budgets.shapes import Action, Shape, Shaped, actions
from paradecode.methods.draft.contracts import LAST, DraftRows, Needs, Nodes, needs_levels
from paradecode.methods.parts import declare, local_path

DIVERGENCE_TOKENS = 64
"""Number of most probable tokens over which a divergence is summed.

A higher value is more exact and slower.
"""
NO_SECONDS = 1.0
"""The number that stands for the seconds of a forward pass that was not measured."""


@dataclass(frozen=True, eq=False)
class Situation:
    """The selector's inputs when the shape of the next draft is chosen, for N steps.

    ``p`` is the target and ``q`` the draft model. Fields ``..._before`` describe the last step.
    ``p_before`` is the hidden state from which the target's last token was drawn. ``q_before`` is
    the draft model's last hidden state on the accepted path. Divergences compare both models at the
    position of ``q_before``. ``q_now`` is the draft model's hidden state of the newest token, which
    the first forward pass of the draft computes anyway.

    Attributes:
        p_before: float32 [N, Hp], output of the target's last layer.
        q_before, q_now: float32 [N, Hq], output of the draft model's last layer.
        scalars: float32 [N, len(SCALARS)], the numbers that ``SCALARS`` names.
    """

    p_before: NDArray[np.float32]
    q_before: NDArray[np.float32]
    q_now: NDArray[np.float32]
    scalars: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.scalars)


@dataclass
class Situations:
    """Stores the draft model's hidden states and logits of a step, until the verification."""

    _drafted: dict[tuple[int, ...], tuple[NDArray[np.float32], Logits]] = field(
        default_factory=dict
    )
    _same_tokens: bool = True
    _before: tuple[NDArray[np.float32], NDArray[np.float32], list[float]] | None = None

    def see_draft(
        self, seq: TokenSequence, tree: TokenTree, nodes: Nodes, rows: DraftRows, seconds: float
    ) -> Situation | None:
        """Store the results of a draft forward pass. At the draft's root, return the situation.

        Return None at other nodes, or if there was no earlier step.

        Args:
            seconds: seconds of a draft forward; 0 if it was not measured.
        """
        for index, node in enumerate(nodes.tolist()):
            path = tuple(tree.tokens_to(node))
            self._drafted[path] = rows.states[index], rows.logits.select([index])
        self._same_tokens = seq.about(rows.model).vocabulary is None
        if len(tree) or self._before is None:
            return None
        p, q, (p_entropy, q_entropy, forward, backward) = self._before
        warp = seq.sampler.warp
        scalars = [
            p_entropy, q_entropy, float(rows.logits.entropy()[0]), forward, backward,
            math.log(len(seq.tokens)), warp.temperature, warp.top_p,
            math.log(seconds or NO_SECONDS), math.log(seq.step_seconds(1) or NO_SECONDS),
        ]  # fmt: skip
        return Situation(p[None], q[None], rows.states[:1], np.array([scalars], np.float32))

    def see_target(
        self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict
    ) -> None:
        """Compare both models at the last accepted position for which both have logits."""
        self._before = None
        path = tuple(verdict.tokens[:-1])
        for length in range(len(path), -1, -1):
            if path[:length] in self._drafted and length < len(verdict.rows):
                q_state, q = self._drafted[path[:length]]
                p = verdict.logits.select([verdict.rows[length]])
                last = verdict.logits.select([verdict.rows[-1]])
                gaps = [0.0, 0.0]
                if self._same_tokens:
                    gaps = [divergence(p, q), divergence(q, p)]
                entropies = [float(last.entropy()[0]), float(q.entropy()[0])]
                # Logits have a row for the root and each node. Hidden states end with these rows.
                p_state = reply.hidden[LAST][verdict.rows[-1] - (1 + len(tree))].copy()
                self._before = p_state, q_state, entropies + gaps
                break
        self._drafted = {}


def unit(states: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return each row divided by its root mean square, float32 [N, H], like a final norm."""
    scale = np.sqrt((states.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-6)
    return (states / scale).astype(np.float32)


def divergence(p: Logits, q: Logits) -> float:
    """Return KL(p || q) in nats, summed over the 64 tokens that are most probable under p.

    ``p`` and ``q`` have one row each. The other tokens have little probability, and a sum over all
    of them would take longer than a small draft forward pass.
    """
    ids, _ = p.top_k(DIVERGENCE_TOKENS)
    log_p, log_q = p.log_probability(ids), q.log_probability(ids)
    both = np.isfinite(log_p) & np.isfinite(log_q)
    gap = np.where(both, log_p, 0.0) - np.where(both, log_q, 0.0)
    return float((np.exp(np.where(both, log_p, -np.inf)) * gap).sum())


@declare("budget", "delayed", paper="Dynamic Delayed Tree Expansion", arxiv="2602.16994")
class Delayed(Shaped):
    """Branch only after a trunk, where the first tokens would agree anyway.

    Thomas et al. 2026 (arXiv 2602.16994). Branches are drawn independently, as in the paper, for
    the verifiers ``specinfer`` and ``spectr``, which expect this. Without ``selector``, a formula
    takes the tree shape with the most expected tokens per second. It uses the tenant's acceptance
    rates by sibling rank and this machine's costs.

    The paper's selector network (``paradecode train tree-selector``) reads hidden states and
    entropies. It chooses after the first draft forward pass of a step, because it reads that
    forward's hidden state. It also needs an earlier verification with hidden states of both models;
    until then the formula chooses. The network and the formula never read the tokens of the draft
    that they shape, only earlier ones.
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
        self._selector.expect(inputs)
        scores = yield Apply(self._selector.network, inputs)
        options = choices(self._selector.facts["count"])
        fits = [action.nodes <= self.count for action in options]
        self._shape = options[int(np.argmax(np.where(fits, scores[0], -np.inf)))].shape()

    def see_target(
        self, seq: TokenSequence, tree: TokenTree, reply: Reply, verdict: Verdict
    ) -> None:
        self._situations.see_target(seq, tree, reply, verdict)
