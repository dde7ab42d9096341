"""Typical acceptance: tokens that the target finds plausible stay."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paradecode.core.tree import ROOT, TokenTree
from paradecode.methods.draft.verifiers.rule import Accepted, Chance, Row, Rows, SamplingVerifier
from paradecode.methods.parts import declare, parameter


@declare(
    "verifier",
    "typical",
    guarantee="lossy",
    paper="Medusa",
    arxiv="2401.10774",
    names={"posterior_threshold": "epsilon", "posterior_alpha": "delta", "alpha": "delta"},
)
@dataclass
class Typical(SamplingVerifier):
    """Accept what the target finds plausible, given its own doubt; changes the law of the output.

    A token is accepted when p > min(epsilon, delta * exp(-entropy of p)) (Cai et al. 2024). The
    longest accepted path wins, of equally long ones the likelier. The token after it is drawn
    from p.
    """

    epsilon: float = parameter(0.09, 0.0, 1.0, "a token more probable than this is accepted")
    delta: float = parameter(0.3, 0.0, 1.0, "so is one above this times exp(-entropy)")

    def rule(self, p: Rows, tree: TokenTree, chance: Chance) -> Accepted:
        best: tuple[int, float, int] = (0, 0.0, ROOT)
        alive: dict[int, tuple[int, float]] = {ROOT: (0, 0.0)}
        for node, (parent, token) in enumerate(
            zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)
        ):
            if parent in alive and p(parent)[token] > self.threshold(p(parent)):
                depth, log_p = alive[parent]
                alive[node] = (depth + 1, log_p + float(np.log(p(parent)[token])))
                best = max(best, (*alive[node], node), key=lambda entry: entry[:2])
        return tree.path(best[2]), chance.draw(p(best[2]))

    def threshold(self, p: Row) -> float:
        """The probability that a token must exceed."""
        entropy = -float((p * np.log(p + 1e-5)).sum())
        return min(self.epsilon, self.delta * float(np.exp(-entropy)))
