"""A small classifier, learnt while decoding: will a draft token be accepted if its parent is?"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paradecode.core.tree import ROOT, TokenTree

FEATURES = ("log-odds of the estimate", "siblings of higher estimate", "depth", "one")
KEEP = 4096
"""The most judged draft tokens that a log holds; more remember older text, and slow training
down."""


def features(tree: TokenTree) -> NDArray[np.float64]:
    """float64 [M, len(FEATURES)]: the facts about each node that are known before it is
    verified."""
    estimate = np.clip(tree.estimates.astype(np.float64), 1e-4, 1 - 1e-4)
    same = tree.parents[:, None] == tree.parents[None, :]
    better = (same & (estimate[None, :] > estimate[:, None])).sum(axis=1)
    depth = np.log(tree.depths)
    return np.stack([np.log(estimate / (1 - estimate)), better, depth, np.ones(len(tree))], axis=1)


@dataclass
class AcceptanceHead:
    """Logistic regression on :func:`features`; an untrained one returns the drafter's estimates."""

    weights: NDArray[np.float64] = field(default_factory=lambda: np.array([1.0, 0.0, 0.0, 0.0]))

    def predict(self, tree: TokenTree) -> NDArray[np.float64]:
        """float64 [M]: probability that each node is accepted, given that its parent is."""
        return _sigmoid(features(tree) @ self.weights)

    def fit(
        self,
        inputs: NDArray[np.float64],
        accepted: NDArray[np.float64],
        rejection_weight: float = 1.0,
        ridge: float = 1.0,
    ) -> None:
        """Train by Newton's method, from logged nodes.

        Args:
            inputs: float64 [N, len(FEATURES)].
            accepted: [N], 1 or 0.
            rejection_weight: how much more a rejected node counts (6 in SpecDec++).
            ridge: strength with which weights are pulled towards the untrained ones.
        """
        prior = AcceptanceHead().weights
        importance = np.where(accepted > 0, 1.0, rejection_weight)
        w = self.weights.copy()
        for _ in range(20):
            p = _sigmoid(inputs @ w)
            gradient = inputs.T @ (importance * (p - accepted)) + ridge * (w - prior)
            curvature = (inputs.T * (importance * p * (1 - p))) @ inputs + ridge * np.eye(len(w))
            step = np.linalg.solve(curvature, gradient)
            w -= np.clip(step, -1.0, 1.0)
            if np.abs(step).max() < 1e-8:
                break
        self.weights = w


class AcceptanceLog:
    """Results of draft tokens: the last ``KEEP`` whose parents were accepted."""

    def __init__(self) -> None:
        self.inputs = np.empty((0, len(FEATURES)))
        self.accepted = np.empty(0)
        self.head = AcceptanceHead()
        self.seen = 0

    @property
    def nbytes(self) -> int:
        return self.inputs.nbytes + self.accepted.nbytes

    def add(self, tree: TokenTree, path: list[int]) -> None:
        """Book a verification that accepted the nodes of ``path``."""
        alive = {ROOT, *path}
        judged = np.array([int(parent) in alive for parent in tree.parents], bool)
        self.inputs = np.concatenate([self.inputs, features(tree)[judged]])[-KEEP:]
        outcome = np.isin(np.flatnonzero(judged), path).astype(np.float64)
        self.accepted = np.concatenate([self.accepted, outcome])[-KEEP:]
        self.seen += len(outcome)


def _sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return 1.0 / (1.0 + np.exp(-np.clip(x, -40.0, 40.0)))
