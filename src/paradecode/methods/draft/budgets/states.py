"""What budgets with trained parts look at: hidden states and distributions of draft and target."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paradecode.core.errors import InvalidInput
from paradecode.core.logits import Logits
from paradecode.methods.draft.needs import Needs

LAST = -1
"""The layer whose outputs are read: the last, before the final norm."""

DIVERGENCE_TOKENS = 64
"""Most likely tokens over which a divergence is summed."""


@dataclass(frozen=True, eq=False)
class DraftRows:
    """What a draft forward computed at F nodes, which it consumed as its input.

    Attributes:
        model: name of the model that drafts.
        logits: F rows: what follows each node.
        states: float32 [F, H], outputs of the last layer that ran, before the norm.
    """

    model: str
    logits: Logits
    states: NDArray[np.float32]


def unit(states: NDArray[np.float32]) -> NDArray[np.float32]:
    """float32 [N, H]: each row over its root mean square, as the model's final norm has it."""
    scale = np.sqrt((states.astype(np.float64) ** 2).mean(axis=1, keepdims=True) + 1e-6)
    return (states / scale).astype(np.float32)


def divergence(p: Logits, q: Logits) -> float:
    """KL(p || q) in nats of one row each, summed over the 64 tokens that p finds most likely.

    What is left out has little mass; the whole sum would take longer than a small draft forward.
    """
    ids, _ = p.top_k(DIVERGENCE_TOKENS)
    log_p, log_q = p.log_probability(ids), q.log_probability(ids)
    both = np.isfinite(log_p) & np.isfinite(log_q)
    gap = np.where(both, log_p, 0.0) - np.where(both, log_q, 0.0)
    return float((np.exp(np.where(both, log_p, -np.inf)) * gap).sum())


def needs_levels(field: str, path: str, needs: Needs) -> None:
    """Raise InvalidInput unless the drafter grows its tree with a model, whose states are read."""
    if not needs.levels:
        fix = "it reads a draft model's states: use it with a method that drafts with a model"
        raise InvalidInput(field, path, fix)
