"""Gathers the inputs of the selector of delayed trees while a request is decoded."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.decoder import Reply, TokenSequence, Verdict
from paradecode.core.logits import Logits
from paradecode.core.tree import TokenTree
from paradecode.methods.draft.budgets.base import LAST, DraftRows, Nodes

DIVERGENCE_TOKENS = 64
"""Number of the likeliest tokens over which a divergence is summed; more are exacter and slower."""
NO_SECONDS = 1.0
"""Value that replaces the seconds of a forward that was not measured."""


@dataclass(frozen=True, eq=False)
class Situation:
    """What is known when the shape of the next draft is chosen, for N steps.

    Fields ``..._before`` are about the last step: the target's row from which its last token was
    drawn, and the draft's newest row on the accepted path, at which divergences compare the models.
    Field ``q_now`` is the draft's row of the newest token, which its first forward computes anyway.

    Attributes:
        p_before: float32 [N, Hp], last layer of the target.
        q_before, q_now: float32 [N, Hq], last layer of the draft.
        scalars: float32 [N, len(SCALARS)].
    """

    p_before: NDArray[np.float32]
    q_before: NDArray[np.float32]
    q_now: NDArray[np.float32]
    scalars: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.scalars)


@dataclass
class Situations:
    """Remembers the draft's rows of a step by their paths, until the verification selects one."""

    _drafted: dict[tuple[int, ...], tuple[NDArray[np.float32], Logits]] = field(
        default_factory=dict
    )
    _same_tokens: bool = True
    _before: tuple[NDArray[np.float32], NDArray[np.float32], list[float]] | None = None

    def see_draft(
        self, seq: TokenSequence, tree: TokenTree, nodes: Nodes, rows: DraftRows, seconds: float
    ) -> Situation | None:
        """Keep the rows; at the root of a draft, return the situation, if there was a step before.

        Args:
            seconds: time of a draft forward; 0 when it was not measured.
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
        """Compare both models at the newest position on the accepted path that both computed."""
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
                # Logits have a row for the root and each node; hidden states end with the same.
                p_state = reply.hidden[LAST][verdict.rows[-1] - (1 + len(tree))].copy()
                self._before = p_state, q_state, entropies + gaps
                break
        self._drafted = {}


def unit(states: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 [N, H]: each row divided by its root mean square, like the model's final norm."""
    scale = np.sqrt((states.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-6)
    return (states / scale).astype(np.float32)


def divergence(p: Logits, q: Logits) -> float:
    """KL(p || q) in nats of one row each, summed over the 64 tokens that p finds most likely.

    The other tokens have little mass; a sum over all would take longer than a small draft forward.
    """
    ids, _ = p.top_k(DIVERGENCE_TOKENS)
    log_p, log_q = p.log_probability(ids), q.log_probability(ids)
    both = np.isfinite(log_p) & np.isfinite(log_q)
    gap = np.where(both, log_p, 0.0) - np.where(both, log_q, 0.0)
    return float((np.exp(np.where(both, log_p, -np.inf)) * gap).sum())
